package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// Redis cannot be reached for a while when writes have just been committed: each
// takes effect once, and in order.
func TestEveryWriteTakesEffectOnceWhenAcknowledgementsAreLost(t *testing.T) {
	for what, lose := range map[string]func(*redistest.Proxy, string, int){
		"request": (*redistest.Proxy).RefuseRequest,
		"reply":   (*redistest.Proxy).DropReply,
	} {
		t.Run(what, func(t *testing.T) {
			s := redistest.Real(t)
			proxy := redistest.NewProxy(t, s)
			a := applicationOn(t, s, proxy.Client(t), database(t), worker.Config{
				// A worker repeats an acknowledgement for as long as it has its lock.
				LockTTL: 200 * time.Millisecond, MaxHold: 200 * time.Millisecond, Batch: 3,
			})
			a.after = func(ctx context.Context, e entry) {
				if in, _ := worker.FromContext(ctx); in.Attempt == 1 && e.Text == "2" {
					lose(proxy, e.Account, 20) // every request about the resource
				}
			}
			var want []string
			for n := range 10 {
				a.push(t, "alice", strconv.Itoa(n))
				want = append(want, strconv.Itoa(n))
			}
			a.run(t)
			a.drained(t)
			expect(t, a.pool, want...)
			if what == "request" && len(a.started()) <= len(want) {
				t.Error("nothing was delivered again: this test tests nothing")
			}
		})
	}
}

func TestProcessThatDiesBetweenCommitAndAcknowledgement(t *testing.T) {
	a := newApplication(t, worker.Config{LockTTL: 300 * time.Millisecond})
	a.push(t, "alice", "once")
	dead := helper(t, "die between commit and acknowledgement", a.environment()...)
	expect(t, a.pool, "once")
	if err := dead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.run(t)
	a.drained(t)
	expect(t, a.pool, "once")
	if got := a.started(); !slices.Equal(got, []int{2}) {
		t.Errorf("started as attempts %v, want the second", got)
	}
}

// Two leases: the first holder's lock has ended while it did not look, and the
// second has written.
func TestHolderThatLostItsLockIsRefusedByTheDatabase(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a := applicationOn(t, s, s.Client(t), database(t), worker.Config{})
		w, err := worker.Wrap(a.worker, func(ctx context.Context, e entry) error {
			if err := a.rdb.Del(ctx, "{"+name+":0}:lock:alice").Err(); err != nil {
				return err
			}
			if out := a.do(t, "alice", "second"); !out.Ran {
				t.Errorf("the second holder: %+v", out)
			}
			late := context.WithoutCancel(ctx)
			return pgfence.Write(late, a.pool, enter(late, e.Text))
		}, worker.Kind[entry]{Name: "late", Resource: func(e entry) string { return e.Account }})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := w.Do(t.Context(), entry{"alice", "first"}); !errors.Is(err, pgfence.ErrStale) {
			t.Errorf("the first holder: %+v, %v", out, err)
		}
		expect(t, a.pool, "second")
		redistest.Audit(t, a.rdb, name)
	})
}

// The first delivery's commit succeeds and its reply is lost. That is neither an
// attempt nor a second effect.
func TestCommitWithoutAReplyIsDeliveredAgainAndSkipped(t *testing.T) {
	var line pgtest.Line
	cfg := config(t)
	line.Lead(cfg)
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	s := redistest.Real(t)
	a := applicationOn(t, s, s.Client(t), pool, worker.Config{MaxAttempts: 1})
	lost := false
	a.before = func(context.Context, entry) {
		if !lost {
			lost = true
			line.LoseReply("commit")
		}
	}
	a.push(t, "alice", "once")
	a.run(t)
	a.drained(t)
	expect(t, pool, "once")
	if got := a.started(); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("started as attempts %v, want twice the first", got)
	}
	// A connection of the pool that has broken meanwhile is found out as late as
	// that, and is no attempt either.
	line.LoseReply("begin")
	a.push(t, "alice", "another")
	a.drained(t)
	expect(t, pool, "once", "another")
}

// What is not the write's fault must not bury it, however often it happens.
func TestTroubleWithTheDatabaseIsNoAttempt(t *testing.T) {
	for what, state := range map[string]string{
		"serialization failure": "40001", "deadlock": "40P01", "lock timeout": "55P03",
		"idle in transaction": "25P03", "too many connections": "53300", "shutdown": "57P01", "standby": "25006",
	} {
		t.Run(what, func(t *testing.T) {
			a := newApplication(t, worker.Config{MaxAttempts: 1})
			troubled := 0
			fn := func(ctx context.Context, e entry) error {
				return pgfence.Write(ctx, a.pool, func(tx pgx.Tx) error {
					if troubled++; troubled <= 12 {
						_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = '"+state+"'; END $$")
						return fmt.Errorf("credit: %w", err)
					}
					return enter(ctx, e.Text)(tx)
				})
			}
			w, err := worker.Wrap(a.worker, fn, worker.Kind[entry]{Name: "troubled", Resource: func(e entry) string { return e.Account }})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Push(t.Context(), entry{"alice", "done"}, 0); err != nil {
				t.Fatal(err)
			}
			a.run(t)
			a.drained(t)
			expect(t, a.pool, "done")
		})
	}
}

func TestDatabaseThatIsAwayIsNoAttempt(t *testing.T) {
	for what, hide := range map[string]func(*pgx.ConnConfig){
		"no server": func(c *pgx.ConnConfig) {
			c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
		},
		"no such database": func(c *pgx.ConnConfig) { c.Database = "nowhere" },
	} {
		t.Run(what, func(t *testing.T) {
			cfg := config(t)
			var away atomic.Bool
			var asked atomic.Int32
			cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
				if away.Load() {
					asked.Add(1)
					hide(c)
				}
				return nil
			}
			pool := pgtest.Connect(t, cfg)
			prepare(t, pool)
			s := redistest.Real(t)
			a := applicationOn(t, s, s.Client(t), pool, worker.Config{MaxAttempts: 1})
			away.Store(true)
			pool.Reset()
			a.push(t, "alice", "done")
			a.run(t)
			redistest.Wait(t, "the database is asked in vain", func() bool { return asked.Load() > 3 })
			away.Store(false)
			a.drained(t)
			expect(t, pool, "done")
		})
	}
}

// The server ends a connection in the middle of a transaction.
func TestConnectionThatIsTerminatedIsBegunAnew(t *testing.T) {
	a := newApplication(t, worker.Config{MaxAttempts: 3})
	killed := false
	fn := func(ctx context.Context, e entry) error {
		return pgfence.Write(ctx, a.pool, func(tx pgx.Tx) error {
			if err := enter(ctx, e.Text)(tx); err != nil || killed {
				return err
			}
			killed = true
			execute(t, a.pool, "SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
			return enter(ctx, "never")(tx)
		})
	}
	w, err := worker.Wrap(a.worker, fn, worker.Kind[entry]{Name: "killed", Resource: func(e entry) string { return e.Account }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Push(t.Context(), entry{"alice", "once"}, 0); err != nil {
		t.Fatal(err)
	}
	a.run(t)
	a.drained(t)
	expect(t, a.pool, "once")
}

// A submitter uses a key again for something else, after the first write is gone
// from Redis: only the database still knows.
func TestKeyUsedAgainForAnotherPayloadIsAnErrorAndNotASkip(t *testing.T) {
	a := newApplication(t, worker.Config{})
	a.do(t, "alice", "w1")
	debit, err := worker.Wrap(a.worker, a.write, worker.Kind[entry]{
		Name:           "debit",
		Resource:       func(e entry) string { return e.Account },
		IdempotencyKey: func(context.Context, entry) string { return "w1" },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := debit.Do(t.Context(), entry{"alice", "w1"}); !errors.Is(err, pgfence.ErrMismatch) {
		t.Errorf("direct: %v", err)
	}
	if _, err := debit.Push(t.Context(), entry{"alice", "w1"}, 0); err != nil {
		t.Fatal(err)
	}
	a.run(t)
	redistest.Wait(t, "the write is a dead letter", func() bool {
		n, err := a.rdb.ZCard(t.Context(), "{"+name+":0}:dead").Result()
		return err == nil && n == 1
	})
	expect(t, a.pool, "w1")
}

// The same call again is the same write: a direct write is fenced like a
// deferred one.
func TestDirectWriteThatIsRepeatedTakesEffectOnce(t *testing.T) {
	a := newApplication(t, worker.Config{})
	for range 3 {
		if out := a.do(t, "alice", "once"); !out.Ran {
			t.Errorf("%+v", out)
		}
	}
	expect(t, a.pool, "once")
}

// {A, B} after a crash that had applied A, through the whole library.
func TestBatchIsDeliveredAgainAfterACrashInItsMiddle(t *testing.T) {
	a := newApplication(t, worker.Config{})
	crashed := false
	var batches [][]string
	w, err := worker.WrapBatch(a.worker, func(ctx context.Context, es []entry) error {
		texts := make([]string, len(es))
		for i, e := range es {
			texts[i] = e.Text
		}
		if !crashed {
			// Half of the batch is committed, as by a process that ran it one by
			// one and died.
			crashed = true
			in, _ := worker.FromContext(ctx)
			first := in.Batch[0]
			write(t, a.pool, first)
			return worker.Busy(errors.New("crash"))
		}
		return pgfence.WriteBatch(ctx, a.pool, texts, func(tx pgx.Tx, fresh []string) error {
			batches = append(batches, fresh)
			return enterAll(ctx)(tx, fresh)
		})
	}, worker.Kind[entry]{
		Name:           "batch",
		Resource:       func(e entry) string { return e.Account },
		IdempotencyKey: func(_ context.Context, e entry) string { return e.Text },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"A", "B", "C"} {
		if _, err := w.Push(t.Context(), entry{"alice", id}, 0); err != nil {
			t.Fatal(err)
		}
	}
	a.run(t)
	a.drained(t)
	expect(t, a.pool, "A", "B", "C")
	for _, fresh := range batches {
		if slices.Contains(fresh, "A") {
			t.Errorf("A was given to the function again: %q", batches)
		}
	}
}

func TestLastWinsTakesEffectOnceThroughTheWorker(t *testing.T) {
	a := newApplication(t, worker.Config{})
	w, err := worker.WrapBatch(a.worker, worker.LastWins(a.write), worker.Kind[entry]{
		Name:           "state",
		Resource:       func(e entry) string { return e.Account },
		IdempotencyKey: func(_ context.Context, e entry) string { return e.Text },
	})
	if err != nil {
		t.Fatal(err)
	}
	submit := func() {
		for _, id := range []string{"A", "B", "C"} {
			if _, err := w.Push(t.Context(), entry{"alice", id}, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	submit()
	a.run(t)
	a.drained(t)
	submit() // all over again, one by one or together
	a.drained(t)
	got := ledger(t, a.pool)
	if len(got) == 0 || got[len(got)-1] != "C" || len(got) > 3 || !slices.IsSorted(got) {
		t.Errorf("took effect: %q", got)
	}
	for _, id := range []string{"A", "B", "C"} {
		if yes, err := pgfence.AppliedTo(t.Context(), a.pool, name, "alice", id); err != nil || !yes {
			t.Errorf("%s: %v, %v", id, yes, err)
		}
	}
}
