package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
	"github.com/deferlock/deferlock/lock"
)

// settling bounds how long the end of a write is reported for when its own
// context has ended.
const settling = 3 * time.Second

// Outcome says what Do did. The zero Outcome: neither ran nor deferred.
type Outcome struct {
	Ran      bool // the write ran here and took effect
	Deferred bool // the write is in the queue

	// ID is the write's idempotency key.
	ID string

	// Why says why a deferred write had to wait, Ahead behind how many others,
	// and HeldFor how long the lock still lives that was in its way, if it is
	// not renewed; negative: it has no end.
	Why     deferral.Why
	Ahead   int
	HeldFor time.Duration

	// Unattended says that no process runs this queue: a deferred write waits
	// until one does.
	Unattended bool
}

// Do runs the write now, or defers it if somebody holds the lock of its
// resource or other writes wait for it. It never waits for a lock. With a nil
// error the write is taken care of: it ran and took effect, or it is in the
// queue. The function's own error comes back as it is. Any other error wraps
// [ErrNotAccepted], when nothing has happened, or [ErrUnknown], when the write
// may be in the queue.
//
// The function runs in the caller's goroutine, and its context ends with ctx.
// That a write ran while its lock could not be given back is no error: the lock
// expires.
func (x *Writer[T]) Do(ctx context.Context, v T) (Outcome, error) {
	if err := ctx.Err(); err != nil {
		return Outcome{}, notAccepted(ended(ctx))
	}
	wr, err := x.write(ctx, v)
	if err != nil {
		return Outcome{}, notAccepted(err)
	}
	return x.worker.do(ctx, x.kind, wr, v)
}

// Push defers the write without trying to run it, for at least delay by Redis's
// clock, and returns its ID. A write that is pushed with a delay takes its place
// in its lane when the delay is over. The errors are those of [Writer.Do].
func (x *Writer[T]) Push(ctx context.Context, v T, delay time.Duration) (id string, err error) {
	if err := ctx.Err(); err != nil {
		return "", notAccepted(ended(ctx))
	}
	wr, err := x.write(ctx, v)
	if err != nil {
		return "", notAccepted(err)
	}
	wr.Delay = delay
	w := x.worker
	if _, err = w.queue.Push(ctx, wr); err != nil {
		return wr.ID, doubt(err)
	}
	w.observe(ctx, Event{Type: EventDeferred, Kind: wr.Kind, Resource: wr.Resource, ID: wr.ID, Rest: delay})
	return wr.ID, nil
}

// ended is why ctx has ended, with its cause if that says more.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func notAccepted(err error) error { return fmt.Errorf("%w: %w", ErrNotAccepted, err) }

// doubt tells the queue's errors apart: what may be stored, and what is not.
func doubt(err error) error {
	if errors.Is(err, deferral.ErrUnclear) || errors.Is(err, deferral.ErrNotReplicated) {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return notAccepted(err)
}

func (w *Worker) do(ctx context.Context, k *kind, wr deferral.Write, v any) (Outcome, error) {
	asked := time.Now()
	a, err := w.queue.Admit(ctx, wr)
	if a == nil {
		return Outcome{ID: wr.ID}, doubt(err)
	}
	if a.Turn == nil {
		return w.deferred(ctx, wr, a, time.Since(asked), err)
	}
	return w.direct(ctx, k, a.Turn, wr, v, time.Since(asked))
}

// deferred reports a write that is in the queue now; err is that it is there,
// but not as safe as was asked for.
func (w *Worker) deferred(ctx context.Context, wr deferral.Write, a *deferral.Admission, took time.Duration, err error) (Outcome, error) {
	out := Outcome{Deferred: true, ID: wr.ID, Why: a.Why, Ahead: a.Ahead, HeldFor: a.HeldFor, Unattended: !a.Attended}
	w.observe(ctx, Event{
		Type: EventDeferred, Kind: wr.Kind, Resource: wr.Resource, ID: wr.ID, Direct: true,
		Why: a.Why, Ahead: a.Ahead, Unattended: out.Unattended, Took: took, Err: err,
	})
	lane := keyspace.LaneOf(wr.Resource, wr.ID)
	if a.HeldFor < 0 {
		w.warnEndless(ctx, lane)
	}
	if c := w.crew.Load(); c != nil && a.HeldFor > 0 {
		// Should the holder die, nobody says so: look when its lock has ended.
		c.sched.soon(w.queue.ShardOf(lane), a.HeldFor)
	}
	if out.Unattended && w.said.first("unattended", "") {
		w.log.WarnContext(ctx, "a write was deferred, but no process runs this queue: is a call of Run missing?")
	}
	if err != nil {
		return out, doubt(err)
	}
	return out, nil
}

// warnEndless says that a lane is blocked by a lock without an end.
func (w *Worker) warnEndless(ctx context.Context, lane string) {
	if w.said.first("endless", lane) {
		w.log.ErrorContext(ctx, "a lock has no end; its lane waits until an operator frees it", "resource", lane)
	}
}

// direct runs a write that was admitted, after the time of took, in the caller's
// goroutine.
func (w *Worker) direct(ctx context.Context, k *kind, t *deferral.Turn, wr deferral.Write, v any, took time.Duration) (Outcome, error) {
	d := t.Direct(wr)
	fctx, stop := t.Lease().Bind(ctx)
	returned := false
	defer func() {
		stop()
		if !returned { // the function, or the observer, ended the goroutine
			_, _ = w.leave(ctx, t, nil)
		}
	}()
	w.observe(ctx, Event{Type: EventAdmitted, Kind: k.name, Resource: wr.Resource, ID: wr.ID, Direct: true, Took: took})
	err := w.call(fctx, k, t, []*deferral.Delivery{d}, []any{v}, true)
	returned = true
	lost := errors.Is(context.Cause(fctx), lock.ErrLost)
	stop()
	if err == nil {
		if _, lerr := w.leave(ctx, t, nil); lerr != nil {
			w.log.WarnContext(ctx, "a write has run, but its lock could not be given back; it expires", "resource", wr.Resource, "error", lerr)
		}
		return Outcome{Ran: true, ID: wr.ID}, nil
	}
	if !w.cfg.DeferFailures || IsPermanent(err) || lost || w.cfg.MaxAttempts == 1 {
		_, _ = w.leave(ctx, t, nil)
		return Outcome{ID: wr.ID}, err
	}
	return w.deferFailure(ctx, t, d, err)
}

// deferFailure puts a direct write that failed to the head of its lane. If that
// fails too, the function's error is what the caller must hear.
func (w *Worker) deferFailure(ctx context.Context, t *deferral.Turn, d *deferral.Delivery, err error) (Outcome, error) {
	v := deferral.Verdict{Delivery: d, Fate: deferral.Entered, Rest: w.rest(d, err), Cause: err.Error()}
	s, lerr := w.leave(ctx, t, []deferral.Verdict{v})
	out := Outcome{ID: d.ID, Deferred: s.Entered, Why: deferral.AtHead}
	switch {
	case lerr == nil && s.Entered:
		w.observe(ctx, Event{
			Type: EventDeferred, Kind: d.Kind, Resource: d.Resource, ID: d.ID, Direct: true,
			Attempt: 1, Why: deferral.AtHead, Rest: v.Rest, Err: err,
		})
		return out, nil
	case lerr != nil && !errors.Is(doubt(lerr), ErrNotAccepted):
		return out, fmt.Errorf("%w: %w: %w", ErrUnknown, lerr, err)
	}
	return Outcome{ID: d.ID}, err
}

// leave ends the turn of a direct write. If writes wait behind it that may run
// now and a runner is free in this process, they are started in the same round
// trip.
func (w *Worker) leave(ctx context.Context, t *deferral.Turn, vs []deferral.Verdict) (deferral.Settled, error) {
	c := w.crew.Load()
	hand := c != nil && c.reserve()
	st := deferral.Settlement{Verdicts: vs, GoOn: deferral.IfDue, Lookback: w.cfg.Lookback}
	if hand {
		st.Next = w.cfg.Batch
	}
	ctx = script.Until(context.WithoutCancel(ctx), time.Now().Add(settling))
	s, err := t.Settle(ctx, st)
	switch {
	case err != nil:
		t.Lease().End()
	case s.More:
		c.goDrain(t)
		return s, nil
	}
	if hand {
		c.release()
	}
	return s, err
}
