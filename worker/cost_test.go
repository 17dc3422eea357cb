package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

func TestUncontendedDoTakesTwoRoundTripsAndADeferredOneTakesOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		w := newWorker(t, p.Client(t), worker.Config{})
		g := newGate()
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.To == "held" {
				return g.write(ctx, e)
			}
			return nil
		})
		ran(t, x, entry{To: "warm", ID: "0"}) // the number of shards, the scripts
		for _, id := range []string{"1", "2"} {
			p.Reset()
			ran(t, x, entry{To: "a", ID: id})
			if n := p.RoundTrips(); n != 2 {
				t.Errorf("an uncontended Do took %d round trips", n)
			}
		}
		pass := hold(t, x, g, entry{To: "held", ID: "3"})
		deferred(t, x, entry{To: "held", ID: "4"})
		p.Reset()
		deferred(t, x, entry{To: "held", ID: "5"})
		if n := p.RoundTrips(); n != 1 {
			t.Errorf("a deferred Do took %d round trips", n)
		}
		pass()
		p.Reset()
		deferred(t, x, entry{To: "held", ID: "6"})
		if n := p.RoundTrips(); n != 1 {
			t.Errorf("a Do deferred behind others took %d round trips", n)
		}
	})
}

func TestRetryInAColdLaneTakesThreeRoundTrips(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		w := newWorker(t, p.Client(t), worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		for _, id := range []string{"warm", "1"} {
			push(t, x, entry{To: id, ID: id})
			p.Reset()
			if n, err := w.RunOnce(t.Context()); n != 1 || err != nil {
				t.Errorf("RunOnce: %d, %v", n, err)
			}
		}
		if n := p.RoundTrips(); n != 3 {
			t.Errorf("look, enter and leave took %d round trips", n)
		}
	})
}

func TestRetriesInAHotLaneShareTheirRoundTrips(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const writes, batch = 300, 10
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{Batch: batch})
		done := make(chan int64, 1)
		var ended atomic.Int64
		x := wrap(t, w, func(context.Context, entry) error {
			if ended.Add(1) == writes {
				done <- p.RoundTrips()
			}
			return nil
		})
		push(t, x, numbered("a", writes)...)
		p.Reset()
		start(t, w)
		// Besides one for each batch: the look and the start, the check of the
		// set-up and the subscription, and what time brings: renewals, and a turn
		// of the lane that is over.
		if n := <-done; n > writes/batch+60 {
			t.Errorf("%d writes took %d round trips", writes, n)
		}
		redistest.Wait(t, "the lane to be drained", idle(t, rdb, w))
	})
}

// Neither a look nor a nudge may be needed: the lock does not change hands at
// all.
func TestNextWriteStartsWithinOneRoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{Poll: time.Hour})
		g := newGate()
		var after int64
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.ID == "2" {
				after = p.RoundTrips()
				return nil
			}
			return g.write(ctx, e)
		})
		start(t, w)
		pass := hold(t, x, g, entry{To: "a", ID: "1"})
		deferred(t, x, entry{To: "a", ID: "2"})
		synctest.Wait()
		p.Reset()
		pass()
		synctest.Wait()
		if after != 1 {
			t.Errorf("the next write began after %d round trips", after)
		}
		empty(t, rdb, w)
	})
}

// The same when the one before it was deferred too and the lane is drained.
func TestNewWriteIsTakenAlongByTheDrainOfItsLane(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{Poll: time.Hour})
		g := newGate()
		var after int64
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.ID == "2" {
				after = p.RoundTrips()
				return nil
			}
			return g.write(ctx, e)
		})
		start(t, w)
		synctest.Wait()
		push(t, x, entry{To: "a", ID: "1"})
		<-g.entered
		deferred(t, x, entry{To: "a", ID: "2"})
		synctest.Wait()
		p.Reset()
		close(g.open)
		synctest.Wait()
		if after != 1 {
			t.Errorf("the next write began after %d round trips", after)
		}
		empty(t, rdb, w)
	})
}

func TestIdleRunCostsRedisNearlyNothing(t *testing.T) {
	for name, shards := range map[string]int{"one shard": 1, "eight shards": 8} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *redistest.Server) {
				p := redistest.NewProxy(t, s)
				w := newWorker(t, p.Client(t), worker.Config{Shards: shards})
				start(t, w)
				time.Sleep(time.Minute) // the check of the set-up, the first looks
				sent, executed := p.Requests(), s.Commands(t)
				const minutes = 30
				time.Sleep(minutes * time.Minute)
				sent, executed = p.Requests()-sent, s.Commands(t)-executed
				if executed > minutes*60 || sent > minutes*60/4 {
					t.Errorf("in %d minutes it sent %d commands, and Redis executed %d", minutes, sent, executed)
				}
				if sent < minutes*60/5 {
					t.Errorf("it sent only %d commands: does it look at all?", sent)
				}
			})
		})
	}
}

// A lane that nobody may enter now, because it is paused, rests, or is for
// later, must not be asked for again and again.
func TestWaitingForSomethingCostsNoMoreThanBeingIdle(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		w := newWorker(t, p.Client(t), worker.Config{Backoff: func(int) time.Duration { return 20 * time.Hour }})
		x := wrap(t, w, func(context.Context, entry) error { return context.DeadlineExceeded })
		if err := w.Queue().Pause(t.Context(), "paused", "by a test"); err != nil {
			t.Fatal(err)
		}
		push(t, x, entry{To: "paused", ID: "1"}, entry{To: "resting", ID: "2"})
		if _, err := x.Push(t.Context(), entry{To: "later", ID: "3"}, 21*time.Hour); err != nil {
			t.Fatal(err)
		}
		start(t, w)
		time.Sleep(time.Minute)
		sent := p.Requests()
		time.Sleep(time.Hour)
		if sent = p.Requests() - sent; sent > 3600/4 {
			t.Errorf("in an hour it sent %d commands", sent)
		}
	})
}

// In the last millisecond of a lock Redis says that it lives for 0 ms.
// The lane was then looked at again and again, as fast as Redis answered.
func TestLockInItsLastMillisecondIsNotLookedAtWithoutEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		if err := rdb.Set(t.Context(), "{w:0}:lock:a", "foreign", 8*time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Microsecond) // so that a look comes in the last millisecond
		push(t, x, entry{To: "a", ID: "1"})
		start(t, w)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if sent := p.Requests(); sent > 200 {
			t.Errorf("%d commands in 9 seconds", sent)
		}
		empty(t, rdb, w)
	})
}
