package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

func every(d time.Duration) func(int) time.Duration {
	return func(int) time.Duration { return d }
}

// failing notes the writes it is given and fails those whose text is "bad".
func failing(b *book, err error) func(context.Context, entry) error {
	return func(ctx context.Context, e entry) error {
		_ = b.write(ctx, e)
		if e.Text == "bad" {
			return err
		}
		return nil
	}
}

func TestLaneWaitsForAWriteThatFailsAndGoesOnWhenItIsDead(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		var v record
		w := newWorker(t, rdb, worker.Config{MaxAttempts: 3, Backoff: every(time.Second), Observe: v.observe})
		x := wrap(t, w, failing(&b, errWrite))
		bad := entry{To: "a", ID: "bad", Text: "bad"}
		push(t, x, entry{To: "a", ID: "1"}, bad, entry{To: "a", ID: "2"})
		stop := start(t, w)
		time.Sleep(1500 * time.Millisecond)
		b.reads(t, "1", "bad", "bad")
		if it := look(t, w, bad); it.Attempts != 2 || it.Cause != errWrite.Error() || it.Place != deferral.Waiting {
			t.Errorf("between its attempts: %+v", it)
		}
		time.Sleep(time.Minute)
		stop()
		b.reads(t, "1", "bad", "bad", "bad", "2")
		if it := look(t, w, bad); it.Place != deferral.Dead || it.Attempts != 3 || it.Cause != errWrite.Error() {
			t.Errorf("at the end: %+v", it)
		}
		once := []worker.EventType{worker.EventStarted, worker.EventEnded, worker.EventRetried}
		want := slices.Concat([]worker.EventType{worker.EventDeferred}, once, once, once[:2], []worker.EventType{worker.EventBuried})
		if got := v.of("bad"); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if e := v.find("bad", worker.EventRetried); e.Rest != time.Second || !errors.Is(e.Err, errWrite) || e.Attempt != 1 {
			t.Errorf("%+v", e)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestWriteThatStepsAsideLetsTheLaneGoOn(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		w := newWorker(t, rdb, worker.Config{OnFailure: worker.WriteStepsAside, MaxAttempts: 2, Backoff: every(time.Minute)})
		x := wrap(t, w, failing(&b, errWrite))
		bad := entry{To: "a", ID: "bad", Text: "bad"}
		push(t, x, entry{To: "a", ID: "1"}, bad, entry{To: "a", ID: "2"})
		start(t, w)
		time.Sleep(time.Second)
		b.reads(t, "1", "bad", "2")
		if it := look(t, w, bad); it.Place != deferral.Later || it.Attempts != 1 {
			t.Errorf("aside: %+v", it)
		}
		ran(t, x, entry{To: "a", ID: "3"})
		time.Sleep(time.Minute)
		b.reads(t, "1", "bad", "2", "3", "bad")
		if it := look(t, w, bad); it.Place != deferral.Dead {
			t.Errorf("at the end: %+v", it)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestLaneHaltsUntilAnOperatorResumesIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		var v record
		w := newWorker(t, rdb, worker.Config{OnFailure: worker.LaneHalts, MaxAttempts: 2, Backoff: every(time.Second), Observe: v.observe})
		broken := true
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.Text == "bad" && broken {
				return errWrite
			}
			return b.write(ctx, e)
		})
		bad := entry{To: "a", ID: "bad", Text: "bad"}
		push(t, x, entry{To: "a", ID: "1"}, bad, entry{To: "a", ID: "2"})
		stop := start(t, w)
		time.Sleep(time.Hour)
		b.reads(t, "1")
		if it := look(t, w, bad); !it.Paused || it.Place != deferral.Waiting || it.Reason != errWrite.Error() {
			t.Errorf("halted: %+v", it)
		}
		if out := deferred(t, x, entry{To: "a", ID: "3"}); out.Why != deferral.Paused {
			t.Errorf("behind a halt: %+v", out)
		}
		if got := v.of("bad"); len(got) != 7 || got[6] != worker.EventHalted {
			t.Errorf("events %v", got)
		}
		stop()
		broken = false
		start(t, w)
		if err := w.Queue().Resume(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		b.reads(t, "1", "bad", "2", "3")
		empty(t, rdb, w)
	})
}

func TestPermanentErrorIsGivenUpAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		w := newWorker(t, rdb, worker.Config{})
		x := wrap(t, w, failing(&b, fmt.Errorf("wrapped: %w", worker.Permanent(errWrite))))
		bad := entry{To: "a", ID: "bad", Text: "bad"}
		push(t, x, bad, entry{To: "a", ID: "2"})
		if n, err := w.RunOnce(t.Context()); n != 1 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		b.reads(t, "bad", "2")
		if it := look(t, w, bad); it.Place != deferral.Dead || it.Attempts != 1 {
			t.Errorf("%+v", it)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestRetryAfterTakesThePlaceOfTheBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Backoff: every(time.Second)})
		var at []time.Duration
		began := time.Now()
		x := wrap(t, w, func(context.Context, entry) error {
			at = append(at, time.Since(began))
			switch len(at) {
			case 1:
				return worker.RetryAfter(errWrite, time.Hour)
			case 2:
				return errWrite
			}
			return nil
		})
		push(t, x, entry{To: "a", ID: "1"})
		stop := start(t, w)
		time.Sleep(2 * time.Hour)
		stop()
		for i := range at {
			at[i] = at[i].Round(10 * time.Millisecond)
		}
		if !slices.Equal(at, []time.Duration{0, time.Hour, time.Hour + time.Second}) {
			t.Errorf("started at %v", at)
		}
		empty(t, rdb, w)
	})
}

// The lane went on behind a write that was given up before Redis knew of it. When
// the lock was lost just then, the write came again behind what had overtaken it.
func TestWriteThatIsGivenUpIsBuriedBeforeTheNextRuns(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{})
		var place deferral.Place
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.ID == "bad" {
				return worker.Permanent(errWrite)
			}
			it, err := w.Queue().LookupIn(ctx, "a", "bad")
			place = it.Place
			return err
		})
		push(t, x, entry{To: "a", ID: "bad"}, entry{To: "a", ID: "next"})
		stop := start(t, w)
		time.Sleep(time.Second)
		stop()
		if place != deferral.Dead {
			t.Errorf("when the next one ran, the write that was given up was %q", place)
		}
	})
}

func TestWriteThatKillsItsProcessIsBuriedWithoutItsNeighbours(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		w := newWorker(t, rdb, worker.Config{MaxAttempts: 3, LockTTL: time.Second})
		x := wrap(t, w, b.write)
		killer := entry{To: "a", ID: "killer"}
		push(t, x, killer, entry{To: "a", ID: "2"}, entry{To: "a", ID: "3"})
		for range 3 {
			turn, err := w.Queue().Enter(t.Context(), "a", 10, 0)
			if err != nil || turn == nil {
				t.Fatal(turn, err)
			}
			turn.Lease().End() // the process is dead
			time.Sleep(time.Second)
		}
		start(t, w)
		time.Sleep(10 * time.Second)
		b.reads(t, "2", "3")
		if it := look(t, w, killer); it.Place != deferral.Dead || it.Cause != "started, and never ended" {
			t.Errorf("%+v", it)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestGoexitInRunIsTheFailureOfTheWrite(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		var v record
		w := newWorker(t, rdb, worker.Config{MaxAttempts: 2, Backoff: every(time.Second), Observe: v.observe, Concurrency: 1})
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.Text == "bad" {
				runtime.Goexit()
			}
			return b.write(ctx, e)
		})
		bad := entry{To: "a", ID: "bad", Text: "bad"}
		push(t, x, entry{To: "a", ID: "1"}, bad, entry{To: "a", ID: "2"})
		stop := start(t, w)
		time.Sleep(time.Minute)
		stop()
		b.reads(t, "1", "2")
		if it := look(t, w, bad); it.Place != deferral.Dead || it.Attempts != 2 {
			t.Errorf("%+v", it)
		}
		once := []worker.EventType{worker.EventStarted, worker.EventEnded, worker.EventRetried}
		want := slices.Concat([]worker.EventType{worker.EventDeferred}, once, once[:2], []worker.EventType{worker.EventBuried})
		if got := v.of("bad"); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func TestDirectFailureGoesToTheHeadOfItsLane(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var v record
		w := newWorker(t, rdb, worker.Config{DeferFailures: true, Backoff: every(0), Observe: v.observe})
		var b book
		var x *worker.Writer[entry]
		fails := errWrite
		x = wrap(t, w, func(ctx context.Context, e entry) error {
			if e.ID != "1" || fails == nil {
				return b.write(ctx, e)
			}
			deferred(t, x, entry{To: "a", ID: "2"}) // while the lock is held
			return fails
		})
		out := deferred(t, x, entry{To: "a", ID: "1"})
		if out.Why != deferral.AtHead || out.Why.String() != "failed" {
			t.Errorf("%+v", out)
		}
		want := []worker.EventType{worker.EventAdmitted, worker.EventStarted, worker.EventEnded, worker.EventDeferred}
		if got := v.of("1"); !slices.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}
		if it := look(t, w, entry{To: "a", ID: "1"}); it.Attempts != 1 || it.Cause != errWrite.Error() {
			t.Errorf("%+v", it)
		}
		fails = nil
		if n, err := w.RunOnce(t.Context()); n != 1 || err != nil { // one that was started before is alone
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		if n, err := w.RunOnce(t.Context()); n != 1 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		b.reads(t, "1", "2")
		empty(t, rdb, w)
	})
}

func TestDirectFailureThatIsFinalGoesToTheCaller(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, c := range map[string]struct {
			cfg worker.Config
			err error
		}{
			"permanent":           {worker.Config{DeferFailures: true}, worker.Permanent(errWrite)},
			"no attempts left":    {worker.Config{DeferFailures: true, MaxAttempts: 1}, errWrite},
			"nothing is deferred": {worker.Config{}, errWrite},
		} {
			rdb := s.Client(t)
			w := newWorker(t, rdb, c.cfg)
			x := wrap(t, w, func(context.Context, entry) error { return c.err })
			out, err := x.Do(t.Context(), entry{To: "a", ID: "1"})
			if err != c.err || out.Ran || out.Deferred { //nolint:errorlint // the very same is promised
				t.Errorf("%s: %+v, %v", name, out, err)
			}
			empty(t, rdb, w)
		}
	})
}

// The lock was held on to for MaxHold when Config.Backoff panicked, and in Run
// the process ended.
func TestBackoffThatPanicsHoldsNothingUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		calls := 0
		w := newWorker(t, rdb, worker.Config{DeferFailures: true, Backoff: func(int) time.Duration { panic("backoff") }})
		x := wrap(t, w, func(context.Context, entry) error {
			if calls++; calls < 3 {
				return errWrite
			}
			return nil
		})
		deferred(t, x, entry{To: "a", ID: "1"})
		stop := start(t, w)
		time.Sleep(10 * time.Minute)
		stop()
		if calls != 3 {
			t.Errorf("%d calls", calls)
		}
		empty(t, rdb, w)
	})
}

// A lane in which all payloads are gone was cleared without a word.
func TestWriteWithoutItsPayloadIsReported(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var j journal
		var v record
		w := newWorker(t, rdb, worker.Config{Logger: j.logger(), Observe: v.observe})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		push(t, x, entry{To: "a", ID: "1"}, entry{To: "b", ID: "2"}, entry{To: "b", ID: "3"})
		if _, err := x.Push(t.Context(), entry{To: "c", ID: "4"}, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		for _, ref := range []string{"a\x001", "b\x003", "c\x004"} {
			if n, err := rdb.Del(t.Context(), "{w:0}:write:"+ref).Result(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		redistest.Wait(t, "all to be seen", func() bool {
			if _, err := w.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			return len(v.of("4")) == 2
		})
		for to, id := range map[string]string{"a": "1", "b": "3", "c": "4"} {
			if e := v.find(id, worker.EventTorn); e.Resource != to {
				t.Errorf("%s: %v, %+v", id, v.of(id), e)
			}
		}
		if n := j.count("has lost its payload"); n != 3 {
			t.Errorf("said %d times:\n%v", n, &j)
		}
		empty(t, rdb, w)
	})
}

// What ran is not run again because Redis was away for a moment when that should
// have been reported.
func TestVerdictIsReportedAsSoonAsRedisIsBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		var j journal
		var b book
		w := newWorker(t, p.Client(t), worker.Config{Logger: j.logger()})
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			if e.ID == "1" {
				p.RefuseRequest("{w:0}:lane:a", 10) // a call sends four times
			}
			return b.write(ctx, e)
		})
		push(t, x, entry{To: "a", ID: "1"}, entry{To: "a", ID: "2"})
		once(t, w, 2)
		b.reads(t, "1", "2")
		if n := j.count("could not be reported yet"); n != 1 || j.count("level=") != 1 {
			t.Errorf("said %d times:\n%v", n, &j)
		}
		empty(t, rdb, w)
	})
}
