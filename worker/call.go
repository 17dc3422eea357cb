package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/lock"
)

// call runs the function of a kind on some writes of one lane. A panic is the
// function's failure.
func (w *Worker) call(ctx context.Context, k *kind, t *deferral.Turn, ds []*deferral.Delivery, vs []any, direct bool) (err error) {
	ins := make([]Info, len(ds))
	for i, d := range ds {
		ins[i] = w.infoOf(t, d)
		w.observe(ctx, w.started(d, len(ds), direct))
	}
	began := time.Now()
	returned := false
	defer func() {
		if r := recover(); r != nil {
			p := &PanicError{Value: r, Stack: debug.Stack()}
			w.log.ErrorContext(ctx, "a write panicked", "kind", k.name, "resource", t.Resource(), "id", ds[0].ID,
				"panic", fmt.Sprint(r), "stack", string(p.Stack))
			err = p
		} else if !returned {
			err = errExited
		}
		w.ended(ctx, t, ds, time.Since(began), direct, err)
	}()
	err = k.run(w.functionContext(ctx, k, ins), vs)
	if err != nil {
		// An error that cannot be asked, such as a nil pointer of an error type,
		// must panic here, where that is the function's failure.
		_ = err.Error()
		if marksOf(err).applied >= len(ds) {
			err = nil
		}
	}
	returned = true
	return err
}

func (w *Worker) started(d *deferral.Delivery, batch int, direct bool) Event {
	e := eventOf(EventStarted, d)
	e.Batch, e.Direct = batch, direct
	return e
}

func (w *Worker) ended(ctx context.Context, t *deferral.Turn, ds []*deferral.Delivery, took time.Duration, direct bool, err error) {
	lost := errors.Is(t.Lease().Err(), lock.ErrLost)
	for _, d := range ds {
		e := eventOf(EventEnded, d)
		e.Batch, e.Direct, e.Took, e.Err = len(ds), direct, took, err
		w.observe(ctx, e)
		if lost {
			e.Type = EventLost
			w.observe(ctx, e)
		}
	}
	if lost {
		w.log.WarnContext(ctx, "the lock was lost while a write ran", "resource", t.Resource(), "id", ds[0].ID, "took", took)
	}
}

// decode makes the value of a stored write. It fails when no function of this
// process is for it, or its codec refuses it: another process may know better.
func (w *Worker) decode(d *deferral.Delivery) (k *kind, v any, err error) {
	if d.Err != nil {
		return nil, nil, d.Err
	}
	if k = w.kind(d.Kind); k == nil {
		return nil, nil, fmt.Errorf("worker: no function here is for kind %q", d.Kind)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("worker: decode a %q: %w", d.Kind, &PanicError{Value: r, Stack: debug.Stack()})
		}
	}()
	if v, err = k.decode(d.Payload); err != nil {
		return nil, nil, fmt.Errorf("worker: decode a %q: %w", d.Kind, err)
	}
	return k, v, nil
}

// unreadableRest is how long a write that no function here is for is left alone,
// so that a process that has one comes to it.
const unreadableRest = time.Second

// unreadable is the verdict on a write that this process cannot decode.
func unreadable(d *deferral.Delivery, err error) deferral.Verdict {
	return deferral.Verdict{Delivery: d, Fate: deferral.Return, Rest: unreadableRest, Cause: err.Error()}
}

// judge is the verdict on a write whose function returned err under ctx.
func (w *Worker) judge(ctx context.Context, d *deferral.Delivery, err error) deferral.Verdict {
	v := deferral.Verdict{Delivery: d}
	if err == nil {
		v.Fate = deferral.Done
		return v
	}
	v.Cause = err.Error()
	switch {
	case ctx.Err() != nil:
		// The lock was lost, or Run is stopping: nothing is known of the write.
		v.Fate = deferral.Return
	case IsPermanent(err):
		v.Fate = w.givenUp()
	case marksOf(err).busy:
		v.Fate, v.Rest = deferral.Return, w.rest(d, err)
	case d.Attempt >= w.cfg.MaxAttempts:
		v.Fate = w.givenUp()
	case w.cfg.OnFailure == WriteStepsAside:
		v.Fate, v.Rest = deferral.Aside, w.rest(d, err)
	default:
		v.Fate, v.Rest = deferral.Failed, w.rest(d, err)
	}
	return v
}

// exhausted is the verdict on a write that was started too often and never
// ended: it takes its process with it.
func (w *Worker) exhausted(d *deferral.Delivery) deferral.Verdict {
	cause := d.Cause
	if cause == "" {
		cause = "started, and never ended"
	}
	return deferral.Verdict{Delivery: d, Fate: w.givenUp(), Cause: cause}
}

func (w *Worker) givenUp() deferral.Fate {
	if w.cfg.OnFailure == LaneHalts {
		return deferral.Halted
	}
	return deferral.Buried
}

// rest is how long to wait before the write is tried again.
func (w *Worker) rest(d *deferral.Delivery, err error) time.Duration {
	m := marksOf(err)
	switch {
	case m.hasAfter:
		return min(m.after, maxRest)
	case m.busy:
		return w.backoff(w.busy.again(keyspace.LaneOf(d.Resource, d.ID)))
	}
	return w.backoff(d.Attempt)
}

// backoff asks the user's function, in a goroutine that must not end by it and
// must give its lock back.
func (w *Worker) backoff(attempt int) (rest time.Duration) {
	defer func() {
		if r := recover(); r != nil {
			if w.said.first("backoff", "") {
				w.log.Error("Config.Backoff panicked; the write waits a minute", "panic", r)
			}
			rest = time.Minute
		}
	}()
	return min(max(w.cfg.Backoff(attempt), 0), maxRest)
}

// maxRest bounds what a backoff can ask for.
const maxRest = 365 * 24 * time.Hour
