package pgfence_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

const clockKey = "{" + name + ":0}:clock"

// ahead sets Redis's clock to an hour and more from now, as if its server's time
// had been wrong: what it gives from now on is above what it gives when it has
// forgotten.
func ahead(t *testing.T, a *application, by time.Duration) {
	t.Helper()
	last := time.Now().Add(by).UnixMicro()
	if err := a.rdb.Set(t.Context(), clockKey, last, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// Redis loses everything it knew while writes go on: the locks, the lanes, and
// the clock, so that fences begin below what the database has seen. A counter
// would have had every later writer refused, for ever.
func TestWritesGoOnWhenRedisIsFlushed(t *testing.T) {
	a := newApplication(t, worker.Config{})
	ahead(t, a, time.Hour)
	var want []string
	for n := range 10 {
		text := strconv.Itoa(n)
		if n == 5 {
			if err := a.rdb.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if out := a.do(t, "alice", text); !out.Ran {
			t.Errorf("%s: %+v", text, out)
		}
		want = append(want, text)
	}
	expect(t, a.pool, want...)
	goesOnAbove(t, a, time.Hour)
}

// The flush hits a write in the middle of its function: its lock is gone, so it
// is late, and whoever comes next does it.
func TestWriteThatLosesItsLockInAFlushIsNotLost(t *testing.T) {
	a := newApplication(t, worker.Config{})
	a.do(t, "alice", "before")
	flushed := false
	a.before = func(ctx context.Context, e entry) {
		if !flushed {
			flushed = true
			if err := a.rdb.FlushAll(ctx).Err(); err != nil {
				t.Error(err)
			}
			a.do(t, "alice", "between") // gets the lock, which is free now
		}
	}
	late, err := a.enter.Do(t.Context(), entry{"alice", "late"})
	if err == nil {
		t.Errorf("a holder without a lock wrote: %+v", late)
	}
	a.do(t, "alice", "late")
	expect(t, a.pool, "before", "between", "late")
}

// Redis is restored from a backup that is an hour older than what the database
// has seen. A write of then is delivered again, and skipped; new ones are done.
func TestWritesGoOnWhenRedisIsRestoredFromAnOlderState(t *testing.T) {
	a := newApplication(t, worker.Config{})
	ahead(t, a, time.Hour)
	a.do(t, "alice", "w1")
	a.push(t, "alice", "w2")
	backup := dump(t, a)
	if n, err := a.worker.RunOnce(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	ahead(t, a, 2*time.Hour)
	a.do(t, "alice", "w3")

	restore(t, a, backup)
	a.push(t, "alice", "w4")
	a.run(t)
	a.drained(t)
	expect(t, a.pool, "w1", "w2", "w3", "w4")
	goesOnAbove(t, a, 2*time.Hour)
}

// The clock's key is lost and the server's time has stepped back by 12 minutes.
func TestWritesGoOnWhenTheClockIsLostAndTimeHasSteppedBack(t *testing.T) {
	s := redistest.Mini(t)
	s.Mini().SetTime(time.Now())
	a := applicationOn(t, s, s.Client(t), database(t), worker.Config{})
	a.do(t, "alice", "before")
	if err := a.rdb.Del(t.Context(), clockKey).Err(); err != nil {
		t.Fatal(err)
	}
	s.Mini().SetTime(time.Now().Add(-12 * time.Minute))
	a.do(t, "alice", "after")
	a.push(t, "alice", "deferred")
	if n, err := a.worker.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	expect(t, a.pool, "before", "after", "deferred")
}

// Batches, and transactions that are joined, heal like single writes.
func TestBatchesAndJoinedTransactionsGoOnToo(t *testing.T) {
	a := newApplication(t, worker.Config{})
	batch, err := worker.WrapBatch(a.worker, func(ctx context.Context, es []entry) error {
		texts := make([]string, len(es))
		for i, e := range es {
			texts[i] = e.Text
		}
		tx, err := a.pool.Begin(ctx)
		if err != nil {
			return err
		}
		if err := pgfence.WriteBatch(ctx, tx, texts, enterAll(ctx)); err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		return tx.Commit(ctx)
	}, worker.Kind[entry]{Name: "batch", Resource: func(e entry) string { return e.Account }})
	if err != nil {
		t.Fatal(err)
	}
	ahead(t, a, time.Hour)
	a.do(t, "alice", "before")
	if err := a.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a", "b"} {
		if _, err := batch.Push(t.Context(), entry{"alice", text}, 0); err != nil {
			t.Fatal(err)
		}
	}
	a.run(t)
	a.drained(t)
	expect(t, a.pool, "before", "a", "b")
}

// goesOnAbove says that Redis has learnt the database's number.
func goesOnAbove(t *testing.T, a *application, by time.Duration) {
	t.Helper()
	seen := fences(t, a.pool)
	last := seen[len(seen)-1]
	if least := time.Now().Add(by - time.Minute).UnixMicro(); last < least {
		t.Errorf("the database has seen %d, less than %d: this test tests nothing", last, least)
	}
	before := len(ledger(t, a.pool))
	w := &counting{}
	a.before = w.count
	a.do(t, "alice", "afterwards")
	if w.fence <= last {
		t.Errorf("after it has healed a write still begins with fence %d, below %d", w.fence, last)
	}
	if n := len(ledger(t, a.pool)); n != before+1 {
		t.Errorf("%d entries, want %d", n, before+1)
	}
}

type counting struct{ fence int64 }

func (c *counting) count(ctx context.Context, _ entry) {
	in, _ := worker.FromContext(ctx)
	c.fence = in.Fence
}

// dump is what Redis holds.
func dump(t *testing.T, a *application) map[string]string {
	t.Helper()
	backup := map[string]string{}
	keys, err := a.rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if backup[k], err = a.rdb.Dump(t.Context(), k).Result(); err != nil {
			t.Fatal(err)
		}
	}
	return backup
}

// restore makes Redis hold nothing but what it held then.
func restore(t *testing.T, a *application, backup map[string]string) {
	t.Helper()
	if err := a.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for k, v := range backup {
		if err := a.rdb.Restore(t.Context(), k, 0, v).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
