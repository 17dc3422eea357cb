package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

// batches notes what a batch function was given, as "1+2+3".
type batches struct{ calls []string }

func (b *batches) note(es []entry) { b.calls = append(b.calls, strings.Join(idsOf(es), "+")) }

func (b *batches) were(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(b.calls, want) {
		t.Errorf("batches %q, want %q", b.calls, want)
	}
}

func once(t *testing.T, w *worker.Worker, want int) {
	t.Helper()
	if n, err := w.RunOnce(t.Context()); n != want || err != nil {
		t.Errorf("RunOnce: %d, %v, want %d", n, err, want)
	}
}

func TestWritesOfOneKindThatFollowEachOtherAreABatch(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Batch: 6})
		var b batches
		add := func(name string) *worker.Writer[entry] {
			x, err := worker.WrapBatch(w, func(ctx context.Context, es []entry) error {
				in, ok := worker.FromContext(ctx)
				if !ok || len(in.Batch) != len(es) || in.ID != es[0].ID || in.Kind != name {
					t.Errorf("%+v for %v", in, es)
				}
				for i := range es {
					if in.Batch[i].ID != es[i].ID {
						t.Errorf("%+v for %v", in.Batch, es)
					}
				}
				b.note(es)
				return nil
			}, kindOf(name))
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		x, y := add("x"), add("y")
		single, err := worker.Wrap(w, func(_ context.Context, e entry) error {
			b.note([]entry{e})
			return nil
		}, kindOf("single"))
		if err != nil {
			t.Fatal(err)
		}
		ran(t, x, entry{To: "a", ID: "0"})
		es := numbered("a", 8)
		push(t, x, es[0], es[1])
		push(t, y, es[2])
		push(t, single, es[3])
		push(t, single, es[4])
		push(t, x, es[5:]...)
		once(t, w, 6)
		once(t, w, 2)
		b.were(t, "0", "w000+w001", "w002", "w003", "w004", "w005", "w006+w007")
		empty(t, rdb, w)
	})
}

func TestWhatABatchSaysWasAppliedIsDoneAndTheRestIsRunOneByOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, c := range map[string]struct {
			first error
			calls []string
		}{
			"some":            {worker.Applied(2, errWrite), []string{"w000+w001+w002+w003", "w002", "w003"}},
			"none":            {worker.Applied(0, errWrite), []string{"w000+w001+w002+w003", "w000", "w001", "w002", "w003"}},
			"it does not say": {errWrite, []string{"w000+w001+w002+w003", "w000", "w001", "w002", "w003"}},
			"fewer than none": {worker.Applied(-1, errWrite), []string{"w000+w001+w002+w003", "w000", "w001", "w002", "w003"}},
			"all":             {worker.Applied(4, errWrite), []string{"w000+w001+w002+w003"}},
			"more than all":   {worker.Applied(9, errWrite), []string{"w000+w001+w002+w003"}},
			"no error":        {worker.Applied(2, nil), []string{"w000+w001+w002+w003"}},
			"permanent, all":  {worker.Permanent(worker.Applied(4, errWrite)), []string{"w000+w001+w002+w003"}},
		} {
			rdb := s.Client(t)
			w := newWorker(t, rdb, worker.Config{})
			var b batches
			x := wrapBatch(t, w, func(_ context.Context, es []entry) error {
				b.note(es)
				if len(es) > 1 {
					return c.first
				}
				return nil
			})
			push(t, x, numbered("a", 4)...)
			t.Log(name)
			once(t, w, 4)
			b.were(t, c.calls...)
			empty(t, rdb, w)
		}
	})
}

// The function said that the one value took effect, and Do said that it failed.
// With DeferFailures it would have taken effect twice.
func TestDirectWriteThatWasAppliedHasRun(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{DeferFailures: true})
		x := wrapBatch(t, w, func(context.Context, []entry) error { return worker.Applied(1, errWrite) })
		ran(t, x, entry{To: "a", ID: "1"})
		empty(t, rdb, w)
	})
}

func TestBadWriteOfABatchIsBuriedAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{MaxAttempts: 3, Backoff: every(time.Second)})
		var b book
		x := wrapBatch(t, w, func(ctx context.Context, es []entry) error {
			if slices.ContainsFunc(es, func(e entry) bool { return e.Text == "bad" }) {
				return fmt.Errorf("the whole transaction: %w", errWrite)
			}
			for _, e := range es {
				_ = b.write(ctx, e)
			}
			return nil
		})
		es := numbered("a", 5)
		es[2].Text = "bad"
		push(t, x, es...)
		stop := start(t, w)
		time.Sleep(time.Minute)
		stop()
		b.reads(t, "w000", "w001", "w003", "w004")
		if it := look(t, w, es[2]); it.Place != deferral.Dead || it.Attempts != 3 {
			t.Errorf("%+v", it)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestBatchStopsWhereTheLaneHasToWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, err := range map[string]error{"failed": errWrite, "busy": worker.Busy(errWrite)} {
			rdb := s.Client(t)
			w := newWorker(t, rdb, worker.Config{Backoff: every(time.Hour)})
			var b batches
			x := wrapBatch(t, w, func(_ context.Context, es []entry) error {
				b.note(es)
				if len(es) > 1 || es[0].ID == "w001" {
					return err
				}
				return nil
			})
			push(t, x, numbered(name, 3)...)
			once(t, w, 1)
			b.were(t, "w000+w001+w002", "w000", "w001")
			want := map[string]int{"failed": 1, "busy": 0}[name]
			if it := look(t, w, entry{To: name, ID: "w001"}); it.Attempts != want || it.Cause == "" {
				t.Errorf("%s: %+v", name, it)
			}
			if it := look(t, w, entry{To: name, ID: "w002"}); it.Attempts != 0 {
				t.Errorf("%s: %+v, never really started", name, it)
			}
			redistest.Audit(t, rdb, "w")
		}
	})
}

func TestLastWinsWritesTheNewestForAll(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		var b book
		var last worker.Info
		x := wrapBatch(t, w, worker.LastWins(func(ctx context.Context, e entry) error {
			last, _ = worker.FromContext(ctx)
			return b.write(ctx, e)
		}))
		ran(t, x, entry{To: "a", ID: "0"})
		if !last.Coalesced || last.ID != "0" || len(last.Batch) != 1 {
			t.Errorf("%+v", last)
		}
		push(t, x, numbered("a", 3)...)
		once(t, w, 3)
		b.reads(t, "0", "w002")
		if !last.Coalesced || last.ID != "w002" || len(last.Batch) != 3 || last.Batch[0].ID != "w000" || last.Batch[2].ID != "w002" {
			t.Errorf("%+v", last)
		}
		empty(t, rdb, w)
	})
}

func TestLastWinsWithoutRedis(t *testing.T) {
	var got []int
	f := worker.LastWins(func(_ context.Context, v int) error {
		got = append(got, v)
		return nil
	})
	for _, vs := range [][]int{nil, {1}, {1, 2, 3}} {
		if err := f(t.Context(), vs); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got, []int{1, 3}) {
		t.Errorf("wrote %v", got)
	}
}

func TestKindsOfOneNameShareTheirLanesAndLocks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		g := newGate()
		credits, err := worker.Wrap(w, g.write, kindOf("credit"))
		if err != nil {
			t.Fatal(err)
		}
		type amount struct{ Account, ID string }
		debits, err := worker.Wrap(w, func(ctx context.Context, a amount) error {
			return g.book.write(ctx, entry{To: a.Account, ID: a.ID})
		}, worker.Kind[amount]{
			Name: "debit", Resource: func(a amount) string { return a.Account },
			IdempotencyKey: func(_ context.Context, a amount) string { return a.ID },
		})
		if err != nil {
			t.Fatal(err)
		}
		pass := hold(t, credits, g, entry{To: "a", ID: "1"})
		if out, err := debits.Do(t.Context(), amount{"a", "2"}); err != nil || out.Why != deferral.Held {
			t.Errorf("%+v, %v", out, err)
		}
		pass()
		if out := deferred(t, credits, entry{To: "a", ID: "3"}); out.Why != deferral.Behind {
			t.Errorf("%+v", out)
		}
		once(t, w, 2)
		g.reads(t, "1", "2", "3")
		empty(t, rdb, w)
	})
}

func TestWritesThatStandAloneNeedNoLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		g := newGate()
		k := kindOf("alone")
		k.Resource = worker.Alone[entry]
		x, err := worker.Wrap(w, func(ctx context.Context, e entry) error {
			if in, _ := worker.FromContext(ctx); in.Resource != "" {
				t.Errorf("%+v", in)
			}
			if e.ID == "1" {
				return g.write(ctx, e)
			}
			return g.book.write(ctx, e)
		}, k)
		if err != nil {
			t.Fatal(err)
		}
		pass := hold(t, x, g, entry{ID: "1"})
		ran(t, x, entry{ID: "2"})
		push(t, x, entry{ID: "3"}, entry{ID: "4"})
		once(t, w, 2)
		pass()
		empty(t, rdb, w)
	})
}

// A resource that was the one zero byte by which Alone was known went without a
// lock.
func TestNoResourceOfAUserStandsAlone(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	w := newWorker(t, rdb, worker.Config{})
	x := wrap(t, w, func(context.Context, entry) error { return nil })
	for _, r := range []string{"\x00", "", "a\x00", "\xff", strings.Repeat("a", 1025)} {
		out, err := x.Do(t.Context(), entry{To: r, ID: "1"})
		if !errors.Is(err, worker.ErrNotAccepted) || out.Ran || out.Deferred {
			t.Errorf("%.10q: %+v, %v", r, out, err)
		}
	}
	if n := rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are stored", n)
	}
}
