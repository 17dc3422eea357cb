package worker_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
	"github.com/deferlock/deferlock/worker"
)

var errWrite = errors.New("the database said no")

// admitKey is in the request of an admission and of nothing else: the payload's
// key is only among the keys of scripts that store it.
const admitKey = "{w:0}:write:a"

func TestOutcomeSaysWhyAWriteWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{})
		g := newGate()
		x := wrap(t, w, g.write)
		pass := hold(t, x, g, entry{To: "a", ID: "1"})
		defer pass()

		check := func(e entry, why deferral.Why, ahead int, word string) {
			t.Helper()
			if out := deferred(t, x, e); out.Why != why || out.Ahead != ahead || out.Why.String() != word {
				t.Errorf("Do(%v): %+v, want %v behind %d", e, out, why, ahead)
			}
		}
		check(entry{To: "a", ID: "2"}, deferral.Held, 0, "held")
		check(entry{To: "a", ID: "3"}, deferral.Held, 1, "held")
		check(entry{To: "a", ID: "3"}, deferral.Already, 1, "already")
		push(t, x, entry{To: "b", ID: "4"})
		check(entry{To: "b", ID: "5"}, deferral.Behind, 1, "behind")
		if err := w.Queue().Pause(t.Context(), "c", "by a test"); err != nil {
			t.Fatal(err)
		}
		check(entry{To: "c", ID: "6"}, deferral.Paused, 0, "paused")
		if out := deferred(t, x, entry{To: "c", ID: "7"}); out.HeldFor != 0 {
			t.Errorf("no lock is in the way for %v", out.HeldFor)
		}
	})
}

func TestDeferredWriteSaysThatNobodyRunsTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		var j journal
		var v record
		w := newWorker(t, s.Client(t), worker.Config{Logger: j.logger(), Observe: v.observe})
		g := newGate()
		x := wrap(t, w, g.write)
		pass := hold(t, x, g, entry{To: "a", ID: "1"})
		for _, id := range []string{"2", "3", "4"} {
			if out := deferred(t, x, entry{To: "a", ID: id}); !out.Unattended {
				t.Errorf("without Run: %+v", out)
			}
		}
		if n := j.count("level=WARN"); n != 1 || j.count("Run missing") != 1 {
			t.Errorf("%d warnings:\n%v", n, &j)
		}
		if !v.find("2", worker.EventDeferred).Unattended {
			t.Error("the event does not say so")
		}
		stop := start(t, newWorker(t, s.Client(t), worker.Config{})) // another process
		synctest.Wait()
		if out := deferred(t, x, entry{To: "a", ID: "5"}); out.Unattended {
			t.Errorf("with Run: %+v", out)
		}
		stop()
		time.Sleep(2 * time.Minute)
		if out := deferred(t, x, entry{To: "a", ID: "6"}); !out.Unattended {
			t.Errorf("after Run: %+v", out)
		}
		if n := j.count("Run missing"); n != 2 {
			t.Errorf("%d warnings", n)
		}
		pass()
	})
}

func TestErrorOfTheFunctionComesBackAsItIs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		returns := errWrite
		x := wrap(t, w, func(context.Context, entry) error { return returns })
		for _, err := range []error{errWrite, worker.Permanent(errWrite), worker.RetryAfter(errWrite, time.Hour), worker.Busy(errWrite)} {
			returns = err
			out, got := x.Do(t.Context(), entry{To: "a", ID: "1"})
			if got != err || out.Ran || out.Deferred || out.ID != "1" { //nolint:errorlint // the very same is promised
				t.Errorf("%+v, %v, want %v itself", out, got, err)
			}
			empty(t, rdb, w)
		}
	})
}

func TestWriteThatRanIsNoErrorThoughItsLockStays(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		var j journal
		w := newWorker(t, p.Client(t), worker.Config{Logger: j.logger()})
		x := wrap(t, w, func(context.Context, entry) error {
			p.RefuseRequest("", 1<<30)
			return nil
		})
		ran(t, x, entry{To: "a", ID: "1"})
		if j.count("could not be given back") != 1 {
			t.Errorf("the log says\n%v", &j)
		}
		p.Heal()
		time.Sleep(lock.DefaultTTL)
		empty(t, rdb, w)
		ran(t, x, entry{To: "a", ID: "2"})
		time.Sleep(lock.DefaultTTL)
	})
}

func TestErrorTellsWhetherTheWriteMayBeInTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{})
		var b book
		x := wrap(t, w, b.write)
		ran(t, x, entry{To: "warm", ID: "0"})

		p.RefuseRequest(admitKey, 1<<30) // cut before Redis has it, but who knows
		_, err := x.Do(t.Context(), entry{To: "a", ID: "1"})
		if !errors.Is(err, worker.ErrUnknown) || errors.Is(err, worker.ErrNotAccepted) {
			t.Errorf("with requests lost: %v", err)
		}
		if _, err = x.Push(t.Context(), entry{To: "a", ID: "1"}, 0); !errors.Is(err, worker.ErrUnknown) {
			t.Errorf("with requests lost: %v", err)
		}
		p.Heal()
		s.Kill(t)
		_, err = x.Do(t.Context(), entry{To: "a", ID: "1"})
		if !errors.Is(err, worker.ErrNotAccepted) || errors.Is(err, worker.ErrUnknown) {
			t.Errorf("with nobody to send it to: %v", err)
		}
		s.Restart(t)
		time.Sleep(2 * time.Second) // go-redis tries to dial once a second

		// A reply that is lost for good: the write waits, and the same key again
		// changes nothing.
		push(t, x, entry{To: "a", ID: "0"})
		p.DropReply(admitKey, 1<<30)
		e := entry{To: "a", ID: "1"}
		if _, err = x.Do(t.Context(), e); !errors.Is(err, worker.ErrUnknown) {
			t.Errorf("with replies lost: %v", err)
		}
		p.Heal()
		if out := deferred(t, x, e); out.Why != deferral.Already || out.Ahead != 1 {
			t.Errorf("again: %+v", out)
		}
		if n, err := w.RunOnce(t.Context()); n != 2 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		b.reads(t, "0", "0", "1")
		empty(t, rdb, w)
	})
}

// An admission whose reply is lost leaves no lock behind that nobody holds.
func TestDoThatNeverLearntOfItsLockGivesItBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		ran(t, x, entry{To: "warm", ID: "0"})
		p.DropReply(admitKey, 1<<30)
		if _, err := x.Do(t.Context(), entry{To: "a", ID: "1"}); !errors.Is(err, worker.ErrUnknown) {
			t.Errorf("with replies lost: %v", err)
		}
		empty(t, rdb, w)
		p.Heal()
		ran(t, x, entry{To: "a", ID: "1"})
	})
}

func TestSameKeyWithAnotherPayloadIsAnErrorAndNeverASkip(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		push(t, x, entry{To: "a", ID: "1", Text: "one"})
		for _, do := range []func(entry) error{
			func(e entry) error { _, err := x.Do(t.Context(), e); return err },
			func(e entry) error { _, err := x.Push(t.Context(), e, 0); return err },
		} {
			err := do(entry{To: "a", ID: "1", Text: "two"})
			if !errors.Is(err, deferral.ErrMismatch) || !errors.Is(err, worker.ErrNotAccepted) {
				t.Errorf("another payload: %v", err)
			}
			if err = do(entry{To: "b", ID: "1", Text: "two"}); err != nil {
				t.Errorf("the same key on another resource: %v", err)
			}
		}
	})
}

func TestInfoTellsTheFunctionWhichWriteItIs(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{})
		var infos []worker.Info
		x := wrap(t, w, func(ctx context.Context, _ entry) error {
			in, ok := worker.FromContext(ctx)
			if !ok || in.Batch != nil || in.Coalesced {
				t.Errorf("%v %+v", ok, in)
			}
			infos = append(infos, in)
			if len(infos) == 2 {
				return errWrite
			}
			return nil
		})
		ran(t, x, entry{To: "a", ID: "1", Text: "same"})
		push(t, x, entry{To: "a", ID: "2", Text: "same"})
		time.Sleep(time.Second)
		for range 2 {
			if _, err := w.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second)
		}
		want := []worker.Info{
			{Name: "w", Kind: "entry", ID: "1", Resource: "a", Attempt: 1},
			{Name: "w", Kind: "entry", ID: "2", Resource: "a", Attempt: 1, DeferredFor: time.Second},
			{Name: "w", Kind: "entry", ID: "2", Resource: "a", Attempt: 2, DeferredFor: 3 * time.Second},
		}
		fence := int64(0)
		for i, in := range infos {
			if in.Fence <= fence {
				t.Errorf("fence %d after %d", in.Fence, fence)
			}
			fence = in.Fence
			if in.Name != want[i].Name || in.Kind != want[i].Kind || in.ID != want[i].ID || in.Resource != want[i].Resource ||
				in.Attempt != want[i].Attempt || in.DeferredFor.Round(time.Millisecond) != want[i].DeferredFor {
				t.Errorf("%+v, want %+v", in, want[i])
			}
		}
		if len(infos) != 3 || infos[1].PayloadHash() != infos[2].PayloadHash() || infos[0].PayloadHash() == infos[1].PayloadHash() {
			t.Error("the payload's hash is not the payload's")
		}
	})
}

type tenantKey struct{}

func TestCarriedValuesReachTheFunctionOnBothPaths(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{
			Carry: func(ctx context.Context) map[string]string {
				m, _ := ctx.Value(tenantKey{}).(map[string]string)
				return m
			},
			Restore: func(ctx context.Context, m map[string]string) context.Context {
				return context.WithValue(ctx, tenantKey{}, m)
			},
		})
		var got []map[string]string
		x := wrapBatch(t, w, func(ctx context.Context, _ []entry) error {
			m, _ := ctx.Value(tenantKey{}).(map[string]string)
			got = append(got, m)
			return nil
		})
		as := func(m map[string]string) context.Context { return context.WithValue(t.Context(), tenantKey{}, m) }
		if _, err := x.Do(as(map[string]string{"tenant": "t1"}), entry{To: "a", ID: "1"}); err != nil {
			t.Fatal(err)
		}
		for id, m := range map[string]map[string]string{
			"2": {"tenant": "t1", "trace": "x"}, "3": {"tenant": "t1", "trace": "y"}, "4": {"tenant": "t1"},
		} {
			if _, err := x.Push(as(m), entry{To: "a", ID: id}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := w.RunOnce(t.Context()); n != 3 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		want := map[string]string{"tenant": "t1"}
		if !slices.EqualFunc(got, []map[string]string{want, want}, maps.Equal) {
			t.Errorf("carried: %v", got)
		}
	})
}

func TestPanicIsTheFailureOfTheWrite(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var j journal
		w := newWorker(t, rdb, worker.Config{Logger: j.logger(), MaxAttempts: 1})
		const secret = "marker-of-the-payload"
		x := wrap(t, w, func(_ context.Context, e entry) error {
			return []error{}[len(e.Text)] // which is out of range
		})
		out, err := x.Do(t.Context(), entry{To: "a", ID: "1", Text: secret})
		var p *worker.PanicError
		if !errors.As(err, &p) || out.Ran || out.Deferred || !strings.Contains(string(p.Stack), "do_test.go") {
			t.Errorf("%+v, %v", out, err)
		}
		empty(t, rdb, w)
		push(t, x, entry{To: "a", ID: "2", Text: secret})
		if n, err := w.RunOnce(t.Context()); n != 0 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		if it := look(t, w, entry{To: "a", ID: "2"}); it.Place != deferral.Dead || !strings.Contains(it.Cause, "out of range") {
			t.Errorf("%+v", it)
		}
		if j.count("a write panicked") != 2 || j.count("do_test.go") == 0 || j.count(secret) != 0 {
			t.Errorf("the log says\n%v", &j)
		}
	})
}

// An error whose text cannot be asked for, such as a nil pointer of an error
// type, ended the process from a goroutine of Run.
func TestErrorThatPanicsIsTheFailureOfTheWrite(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{MaxAttempts: 1})
		x := wrap(t, w, func(context.Context, entry) error { return (*textError)(nil) })
		var p *worker.PanicError
		if _, err := x.Do(t.Context(), entry{To: "a", ID: "1"}); !errors.As(err, &p) {
			t.Errorf("Do: %v", err)
		}
		push(t, x, entry{To: "a", ID: "2"})
		if n, err := w.RunOnce(t.Context()); n != 0 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		if it := look(t, w, entry{To: "a", ID: "2"}); it.Place != deferral.Dead {
			t.Errorf("%+v", it)
		}
	})
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }

func TestGoexitInDoGivesTheLockBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error {
			runtime.Goexit()
			return nil
		})
		var g sync.WaitGroup
		g.Go(func() {
			_, _ = x.Do(t.Context(), entry{To: "a", ID: "1"})
			t.Error("Do returned")
		})
		g.Wait()
		empty(t, rdb, w)
	})
}

func TestObserverThatPanicsChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var b book
		w := newWorker(t, rdb, worker.Config{Observe: func(worker.Event) { panic("observer") }})
		x := wrap(t, w, b.write)
		ran(t, x, entry{To: "a", ID: "1"})
		push(t, x, entry{To: "a", ID: "2"})
		if n, err := w.RunOnce(t.Context()); n != 1 || err != nil {
			t.Errorf("RunOnce: %d, %v", n, err)
		}
		b.reads(t, "1", "2")
		empty(t, rdb, w)
	})
}

func TestDirectWriteEndsWithItsCallersContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		x := wrap(t, w, func(ctx context.Context, _ entry) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errWrite)
		defer cancel()
		if out, err := x.Do(ctx, entry{To: "a", ID: "1"}); !reflect.DeepEqual(err, errWrite) || out.Ran || out.Deferred {
			t.Errorf("%+v, %v", out, err)
		}
		empty(t, rdb, w)
	})
}
