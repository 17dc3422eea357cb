package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

func TestRunThatIsStoppedBeforeItStartsDoesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		var b book
		push(t, wrap(t, w, b.write), entry{To: "a", ID: "1"})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errWrite)
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
		if n, err := w.RunOnce(ctx); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		b.reads(t)
		start(t, w) // and again
		redistest.Wait(t, "the write", idle(t, rdb, w))
		b.reads(t, "1")
	})
}

func TestSecondRunOfAWorkerIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{})
		for range 3 {
			stop := start(t, w)
			synctest.Wait()
			if err := w.Run(t.Context()); !errors.Is(err, worker.ErrRunning) {
				t.Errorf("Run: %v", err)
			}
			stop()
		}
	})
}

// When Run was asked to stop it went on to begin all writes that it had fetched,
// for as long as the grace was.
func TestStopLetsWhatIsRunningFinishAndBeginsNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Grace: time.Minute})
		var b book
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			time.Sleep(2 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("cancelled within the grace: %v", context.Cause(ctx))
			}
			return b.write(ctx, e)
		})
		push(t, x, numbered("a", 50)...)
		stop := start(t, w)
		time.Sleep(3 * time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		b.reads(t, "w000", "w001")
		if it := look(t, w, entry{To: "a", ID: "w002"}); it.Place != deferral.Waiting || it.Attempts != 0 {
			t.Errorf("the next one: %+v", it)
		}
		if locks, err := redistest.Locks(t.Context(), rdb, "w"); err != nil || len(locks) != 0 {
			t.Errorf("locks %q, %v", locks, err)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestWriteThatOutlastsTheGraceIsCancelledAndNotCounted(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Grace: 3 * time.Second, MaxAttempts: 1})
		var cause error
		x := wrap(t, w, func(ctx context.Context, _ entry) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return cause
		})
		e := entry{To: "a", ID: "1"}
		push(t, x, e)
		for _, run := range []func(context.Context) error{w.Run, func(ctx context.Context) error {
			_, err := w.RunOnce(ctx)
			return err
		}} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
			cancel()
			if took := time.Since(began); took != 4*time.Second || !errors.Is(cause, worker.ErrStopping) {
				t.Errorf("it took %v; cause %v", took, cause)
			}
			if it := look(t, w, e); it.Place != deferral.Waiting || it.Attempts != 0 {
				t.Errorf("%+v", it)
			}
			if locks, err := redistest.Locks(t.Context(), rdb, "w"); err != nil || len(locks) != 0 {
				t.Errorf("locks %q, %v", locks, err)
			}
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestWriteThatIgnoresItsContextIsAbandonedAndStillExcludesOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Grace: time.Second})
		g := newGate()
		x := wrap(t, w, g.write)
		push(t, x, entry{To: "a", ID: "1"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		<-g.entered
		began := time.Now()
		cancel()
		if err := <-done; !errors.Is(err, worker.ErrAbandoned) {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		stop := start(t, w) // nothing keeps the worker from running again
		time.Sleep(time.Minute)
		if len(g.entered) != 0 {
			t.Error("the write runs twice at once")
		}
		stop()
		close(g.open)
		synctest.Wait()
		g.reads(t, "1") // it did take effect, and that is acknowledged
		empty(t, rdb, w)
	})
}

func TestStartAndStopWhileOthersSubmit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Concurrency: 4, Batch: 3})
		var b book
		x := wrap(t, w, b.write)
		var accepted atomic.Int64
		var submitters sync.WaitGroup
		enough := make(chan struct{})
		for m := range 4 {
			submitters.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-enough:
						return
					default:
					}
					if _, err := x.Do(t.Context(), entry{To: fmt.Sprint(i % 3), ID: fmt.Sprint(m, "-", i)}); err != nil {
						t.Error(err)
						return
					}
					accepted.Add(1)
				}
			})
		}
		for range 20 {
			stop := start(t, w)
			seen := accepted.Load()
			redistest.Wait(t, "some writes", func() bool { return accepted.Load() > seen+5 })
			stop()
		}
		close(enough)
		submitters.Wait()
		start(t, w)
		redistest.Wait(t, "the rest", idle(t, rdb, w))
		if n := int64(len(b.list())); n != accepted.Load() || b.overlap {
			t.Errorf("%d of %d accepted writes took effect; overlap: %v", n, accepted.Load(), b.overlap)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestRunOutlivesRedisBeingAwayAndSaysSoOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		var j journal
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Logger: j.logger()})
		var b book
		x := wrap(t, w, b.write)
		push(t, x, entry{To: "a", ID: "1"})
		s.Kill(t)
		stop := start(t, w)
		time.Sleep(time.Minute)
		b.reads(t)
		if n := j.count("Redis does not answer"); n != 1 {
			t.Errorf("said %d times:\n%v", n, &j)
		}
		for i := range 3 {
			s.Restart(t)
			time.Sleep(10 * time.Second)
			if n := j.count("Redis answers again"); n != i+1 {
				t.Errorf("said %d times:\n%v", n, &j)
			}
			if i == 0 {
				b.reads(t, "1")
			}
			s.Kill(t)
			time.Sleep(time.Minute)
		}
		if n := j.count("Redis does not answer"); n != 4 {
			t.Errorf("said %d times:\n%v", n, &j)
		}
		s.Restart(t)
		time.Sleep(10 * time.Second)
		ran(t, x, entry{To: "a", ID: "2"})
		b.reads(t, "1", "2")
		stop()
		if all := j.count("level="); all > 30 {
			t.Errorf("%d lines are in the log:\n%v", all, &j)
		}
		empty(t, rdb, w)
	})
}

func TestForgottenScriptsAreNoTrouble(t *testing.T) {
	s := redistest.Real(t)
	rdb := s.Client(t)
	w := newWorker(t, rdb, worker.Config{Batch: 5})
	var b book
	x := wrap(t, w, b.write)
	start(t, w)
	enough := make(chan struct{})
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for {
			select {
			case <-enough:
				return
			default:
				s.FlushScripts(t)
			}
		}
	})
	want := map[string]bool{}
	for i := range 300 {
		e := entry{To: fmt.Sprint(i % 2), ID: fmt.Sprint(i)}
		want[e.ID] = true
		if out, err := x.Do(t.Context(), e); err != nil || !out.Ran && !out.Deferred {
			t.Errorf("%+v, %v", out, err)
		}
		push(t, x, entry{To: fmt.Sprint(i % 2), ID: fmt.Sprint("p", i)})
	}
	redistest.Wait(t, "all writes", idle(t, rdb, w))
	close(enough)
	flusher.Wait()
	if got := b.list(); len(got) != 600 || b.overlap {
		t.Errorf("%d of 600 took effect", len(got))
	}
	redistest.Audit(t, rdb, "w")
}

func TestWhatTheNudgesMissedThePollingFinds(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		submits := newWorker(t, s.Client(t), worker.Config{})
		x := wrap(t, submits, func(context.Context, entry) error { return nil })
		runs := newWorker(t, p.Client(t), worker.Config{})
		var b book
		wrap(t, runs, b.write)
		p.RefuseRequest("{w:0}:nudge", 1<<30)
		start(t, runs)
		time.Sleep(12 * time.Second)
		push(t, x, entry{To: "a", ID: "1"})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		b.reads(t, "1")

		p.Heal()
		time.Sleep(time.Minute)
		push(t, x, entry{To: "a", ID: "2"})
		synctest.Wait()
		b.reads(t, "1", "2") // and with nudges at once
	})
}

// A write that came after the first look, and before the nudges were subscribed
// to, was found by the next poll only.
func TestNothingIsMissedWhileTheNudgesAreSubscribedTo(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		var b book
		w := newWorker(t, p.Client(t), worker.Config{Poll: time.Hour})
		x := wrap(t, w, b.write)
		_, release := p.HoldRequest("{w:0}:nudge") // the check of the set-up subscribes too
		start(t, w)
		synctest.Wait()
		push(t, x, entry{To: "a", ID: "1"})
		synctest.Wait()
		b.reads(t)
		release()
		synctest.Wait()
		b.reads(t, "1")
		p.Cut()
		push(t, x, entry{To: "a", ID: "2"})
		time.Sleep(time.Minute)
		synctest.Wait()
		b.reads(t, "1", "2")
	})
}

func TestSomeProcessesOnlySubmitAndOthersOnlyRun(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		submits := newWorker(t, rdb, worker.Config{})
		g := newGate()
		x := wrap(t, submits, g.write)
		runs := newWorker(t, s.Client(t), worker.Config{Lookback: 2 * time.Second})
		wrap(t, runs, g.book.write)
		stop := start(t, runs)
		synctest.Wait()
		pass := hold(t, x, g, entry{To: "a", ID: "1"})
		deferred(t, x, entry{To: "a", ID: "2"})
		time.Sleep(time.Second)
		pass()
		synctest.Wait()
		g.reads(t, "1")
		time.Sleep(1100 * time.Millisecond) // the lookback counts from the push
		g.reads(t, "1", "2")
		stop()
		empty(t, rdb, submits)
	})
}

func TestLookbackGathersABatchAndThenDrainsTheLane(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Lookback: 3 * time.Second})
		var b batches
		x := wrapBatch(t, w, func(_ context.Context, es []entry) error {
			b.note(es)
			return nil
		})
		stop := start(t, w)
		for _, e := range numbered("a", 4) {
			push(t, x, e)
			time.Sleep(900 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		stop()
		b.were(t, "w000+w001+w002+w003")
		empty(t, rdb, w)
	})
}
