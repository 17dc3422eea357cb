package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
	"github.com/deferlock/deferlock/worker"
)

func TestDoNeverWaitsForTheLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		g := newGate()
		x := wrap(t, w, g.write)
		pass := hold(t, x, g, entry{To: "a", ID: "1"})

		out := deferred(t, x, entry{To: "a", ID: "2"})
		if out.Why != deferral.Held || out.Ahead != 0 || out.HeldFor <= 0 || out.HeldFor > lock.DefaultTTL {
			t.Errorf("the first behind the holder: %+v", out)
		}
		if out = deferred(t, x, entry{To: "a", ID: "3"}); out.Why != deferral.Held || out.Ahead != 1 {
			t.Errorf("the second: %+v", out)
		}
		pass()
		start(t, w)
		redistest.Wait(t, "the lane to be drained", idle(t, rdb, w))
		g.reads(t, "1", "2", "3")
		redistest.Wait(t, "the lock to be given back", func() bool {
			locks, err := redistest.Locks(t.Context(), rdb, "w")
			return err == nil && len(locks) == 0
		})
		empty(t, rdb, w)
	})
}

func TestNewerWriteDoesNotOvertakeDeferredOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		g := newGate()
		x := wrap(t, w, g.write)
		pass := hold(t, x, g, entry{To: "a", ID: "1"})
		deferred(t, x, entry{To: "a", ID: "2"})
		pass()

		if locks, err := redistest.Locks(t.Context(), rdb, "w"); err != nil || len(locks) != 0 {
			t.Fatalf("locks %q, %v: the lock should be free now", locks, err)
		}
		if out := deferred(t, x, entry{To: "a", ID: "3"}); out.Why != deferral.Behind || out.Ahead != 1 || out.HeldFor != 0 {
			t.Errorf("with the lock free and a write waiting: %+v", out)
		}
		if n, err := w.RunOnce(t.Context()); n != 2 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		g.reads(t, "1", "2", "3")
		ran(t, x, entry{To: "a", ID: "4"})
		empty(t, rdb, w)
	})
}

// span is when one Do began and returned, by one clock for all.
type span struct{ began, returned int64 }

// Some writes fail and are put to the head of the lane, others fail in the lane.
func TestRealTimeOrderHoldsAmongManyWorkersWithFailures(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var clock, fails atomic.Int64
		var mu sync.Mutex // guards spans
		spans := map[string]span{}
		var b book
		write := func(ctx context.Context, e entry) error {
			if fails.Add(1)%7 == 0 {
				return errors.New("now and then")
			}
			return b.write(ctx, e)
		}
		var workers []*worker.Worker
		var submitters sync.WaitGroup
		for n := range 3 {
			w := newWorker(t, s.Client(t), worker.Config{
				DeferFailures: true, Batch: 1 + n, Backoff: func(int) time.Duration { return time.Millisecond },
			})
			workers = append(workers, w)
			x := wrap(t, w, write)
			if n > 0 { // one process only submits
				start(t, w)
			}
			for m := range 2 {
				submitters.Go(func() {
					for i := range 40 {
						e := entry{To: "a", ID: fmt.Sprintf("%d-%d-%d", n, m, i)}
						began := clock.Add(1)
						if out, err := x.Do(t.Context(), e); err != nil || !out.Ran && !out.Deferred {
							t.Errorf("Do: %+v, %v", out, err)
						}
						mu.Lock()
						spans[e.ID] = span{began, clock.Add(1)}
						mu.Unlock()
					}
				})
			}
		}
		submitters.Wait()
		rdb := s.Client(t)
		redistest.Wait(t, "the lane to be drained", idle(t, rdb, workers[0]))

		inOrder(t, b.list(), spans)
		if b.overlap {
			t.Error("two writes overlapped")
		}
		redistest.Audit(t, rdb, "w")
	})
}

// inOrder fails the test if a write was lost or doubled, or took effect before
// one that had returned when its own Do began.
func inOrder(t *testing.T, ids []string, spans map[string]span) {
	t.Helper()
	if len(ids) != len(spans) {
		t.Errorf("%d effects of %d writes", len(ids), len(spans))
	}
	least, whose := int64(1)<<62, ""
	for _, id := range slices.Backward(ids) {
		if spans[id].began > least {
			t.Errorf("%s took effect before %s, whose Do had returned when its own began", id, whose)
		}
		if spans[id].returned < least {
			least, whose = spans[id].returned, id
		}
	}
}

func TestWriteOfADeadWorkerIsRunByAnotherAfterTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{LockTTL: 8 * time.Second})
		var b book
		attempt := 0
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			in, _ := worker.FromContext(ctx)
			attempt = in.Attempt
			return b.write(ctx, e)
		})
		push(t, x, entry{To: "a", ID: "1"})
		turn, err := w.Queue().Enter(t.Context(), "a", 1, 0)
		if err != nil || turn == nil {
			t.Fatal(turn, err)
		}
		turn.Lease().End() // as a process that is dead: nobody renews
		died := time.Now()
		push(t, x, entry{To: "a", ID: "2"})
		start(t, w)
		time.Sleep(8*time.Second - time.Millisecond)
		b.reads(t)
		until(t, "both writes", func() bool { return len(b.list()) == 2 })
		if late := time.Since(died) - 8*time.Second; late > time.Second {
			t.Errorf("it ran %v after the lock had expired", late)
		}
		b.reads(t, "1", "2")
		if attempt != 1 {
			t.Errorf("the second write, never started before, is at attempt %d", attempt)
		}
		synctest.Wait()
		empty(t, rdb, w)
	})
}

// A worker whose network is a black hole loses its lock: its function hears of
// it before another worker gets the lock, and what it says afterwards does no
// harm.
func TestCutOffWorkerHearsOfItBeforeAnotherRunsItsWrite(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		cut, sound := newWorker(t, p.Client(t), worker.Config{}), newWorker(t, rdb, worker.Config{})
		entered := make(chan struct{}, 1)
		var heard, second time.Time
		x := wrap(t, cut, func(ctx context.Context, _ entry) error {
			entered <- struct{}{}
			<-ctx.Done()
			heard = time.Now()
			if !errors.Is(context.Cause(ctx), lock.ErrLost) {
				t.Errorf("the context ended because of %v", context.Cause(ctx))
			}
			return ctx.Err()
		})
		wrap(t, sound, func(context.Context, entry) error {
			second = time.Now()
			return nil
		})
		push(t, x, entry{To: "a", ID: "1"})
		start(t, cut)
		<-entered
		p.RefuseRequest("", 1<<30)
		p.Cut()
		stop := start(t, sound)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if heard.IsZero() || second.IsZero() || !heard.Before(second) {
			t.Errorf("the first heard of it at %v, the second began at %v", heard, second)
		}
		p.Heal()
		time.Sleep(30 * time.Second)
		stop()
		empty(t, rdb, sound)
	})
}

func TestLossOfTheLockIsNotAnAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var v record
		w := newWorker(t, rdb, worker.Config{LockTTL: 2 * time.Second, MaxHold: 2 * time.Second, MaxAttempts: 1, Observe: v.observe})
		var attempts []int
		x := wrap(t, w, func(ctx context.Context, _ entry) error {
			in, _ := worker.FromContext(ctx)
			attempts = append(attempts, in.Attempt)
			if len(attempts) > 2 {
				return nil
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lock.ErrLost) {
				t.Errorf("the context ended because of %v", context.Cause(ctx))
			}
			return ctx.Err()
		})
		push(t, x, entry{To: "a", ID: "1"})
		stop := start(t, w)
		time.Sleep(time.Minute)
		stop()
		if !slices.Equal(attempts, []int{1, 1, 1}) {
			t.Errorf("attempts %v", attempts)
		}
		lost := []worker.EventType{worker.EventStarted, worker.EventEnded, worker.EventLost, worker.EventReturned}
		want := slices.Concat([]worker.EventType{worker.EventDeferred}, lost, lost, lost[:2])
		got := v.of("1")
		slices.Sort(got) // that it was returned is told when the next runner may have it already
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		empty(t, rdb, w)
	})
}

func TestWriteThatSucceededWithoutItsLockIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{LockTTL: 2 * time.Second, MaxHold: 2 * time.Second})
		var b book
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			<-ctx.Done()
			time.Sleep(10 * time.Second) // until long after another could have the lock
			return b.write(ctx, e)
		})
		push(t, x, entry{To: "a", ID: "1"})
		if n, err := w.RunOnce(t.Context()); n != 1 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		empty(t, rdb, w)
		ran(t, x, entry{To: "a", ID: "2"})
		b.reads(t, "1", "2")
		empty(t, rdb, w)
	})
}

// A failure reported after the lock was lost is not carried out. It was
// announced all the same, even a burial that never took place.
func TestEventsTellOnlyWhatRedisHasCarriedOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var v record
		var j journal
		w := newWorker(t, rdb, worker.Config{Observe: v.observe, Logger: j.logger()})
		x := wrap(t, w, func(ctx context.Context, _ entry) error {
			if _, err := w.Queue().Free(ctx, "a"); err != nil {
				t.Error(err)
			}
			return worker.Permanent(errors.New("no"))
		})
		push(t, x, entry{To: "a", ID: "1"})
		if n, err := w.RunOnce(t.Context()); n != 0 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		want := []worker.EventType{worker.EventDeferred, worker.EventStarted, worker.EventEnded, worker.EventLost}
		if got := v.of("1"); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if it := look(t, w, entry{To: "a", ID: "1"}); it.Place != deferral.Waiting || j.count("given up") != 0 {
			t.Errorf("it is in %v, and the log says:\n%v", it.Place, &j)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestHotResourceDoesNotDelayAColdOne(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{Concurrency: 1, Batch: 10})
		var b book
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			time.Sleep(10 * time.Millisecond)
			return b.write(ctx, e)
		})
		hot := numbered("hot", 1000)
		push(t, x, hot...)
		start(t, w)
		time.Sleep(50 * time.Millisecond)
		for i := range 5 {
			e := entry{To: fmt.Sprint("cold", i), ID: fmt.Sprint("cold", i)}
			began := time.Now()
			push(t, x, e)
			until(t, e.ID, func() bool { return slices.Contains(b.list(), e.ID) })
			// A turn of a lane is 250 ms, and ends with its batch of 10.
			if took := time.Since(began); took > 400*time.Millisecond {
				t.Errorf("the cold write waited %v", took)
			}
		}
		if done := len(b.list()); done > 500 {
			t.Errorf("%d writes are done: the cold ones did not come in between", done)
		}
	})
}

func TestOthersFlowWhileAThousandWaitForOne(t *testing.T) {
	rdb := redistest.Real(t).Client(t)
	w := newWorker(t, rdb, worker.Config{Concurrency: 2})
	g := newGate()
	x := wrap(t, w, func(ctx context.Context, e entry) error {
		if e.To == "hot" {
			return g.write(ctx, e)
		}
		return g.book.write(ctx, e)
	})
	pass := hold(t, x, g, entry{To: "hot", ID: "first"})
	hot := numbered("hot", 1000)
	for _, e := range hot {
		deferred(t, x, e)
	}
	start(t, w)
	var cold []entry
	for i := range 50 {
		cold = append(cold, entry{To: fmt.Sprint("cold", i), ID: fmt.Sprint("cold", i)})
	}
	push(t, x, cold[:25]...)
	for _, e := range cold[25:] {
		ran(t, x, e)
	}
	redistest.Wait(t, "the cold writes", func() bool { return len(g.list()) == len(cold) })
	pass()
	redistest.Wait(t, "the hot writes", idle(t, rdb, w))
	got := slices.DeleteFunc(g.list(), func(id string) bool { return slices.Contains(idsOf(cold), id) })
	if want := append([]string{"first"}, idsOf(hot)...); !slices.Equal(got, want) {
		t.Errorf("the hot writes are not in order: %v", got)
	}
}

// A direct write reserves a runner on its way out, for what waits behind it. A
// lane that had been found due meanwhile, for that same runner, was dropped: it
// stayed reserved for a second, and could meet with the same again and again.
func TestDirectWritesDoNotKeepRunnersFromWaitingLanes(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{Concurrency: 1})
		var b book
		var leaving <-chan struct{}
		var leave func()
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.To == "direct" {
				leaving, leave = p.HoldRequest("lock:direct")
			}
			return b.write(ctx, e)
		})
		start(t, w)
		synctest.Wait()
		found := p.HoldReply("{w:0}:shards") // of the look
		push(t, x, entry{To: "waiting", ID: "2"})
		synctest.Wait()
		go func() { _, _ = x.Do(t.Context(), entry{To: "direct", ID: "1"}) }()
		synctest.Wait()
		<-leaving
		began := time.Now()
		found()
		synctest.Wait()
		leave()
		synctest.Wait()
		b.reads(t, "1", "2")
		if took := time.Since(began); took != 0 {
			t.Errorf("the waiting write took %v", took)
		}
		empty(t, rdb, w)
	})
}
