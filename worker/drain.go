package worker

import (
	"context"
	"errors"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/script"
)

// laneTurn is how long a runner stays with one lane while others are due: a
// deep lane must not starve a shallow one.
const laneTurn = 250 * time.Millisecond

// drain runs the writes of one lane, batch by batch, under one lock.
type drain struct {
	w    *Worker
	crew *crew
	turn *deferral.Turn

	// verdicts are those on the turn's deliveries so far, in their order;
	// running is how many behind them are in their function now.
	verdicts []deferral.Verdict
	running  int

	// behind is how many deliveries were not run only because the one before them
	// has to be buried first.
	behind int

	// events are what the verdicts mean, told when Redis has carried them out.
	events []Event
}

// run works until the lane is empty or the lock is given back.
func (d *drain) run() {
	began := time.Now()
	returned := false
	defer func() {
		if !returned { // a function ended the goroutine
			d.exited()
			_, _ = d.settle(0, deferral.Always)
		}
	}()
	for more := true; more; {
		d.report(d.turn.Torn())
		d.batch()
		next, goOn := max(d.crew.batchSize(), d.behind), deferral.Always
		if time.Since(began) > laneTurn {
			goOn = deferral.IfAlone
		}
		more, _ = d.settle(next, goOn)
	}
	returned = true
}

// batch runs the turn's deliveries in order, until one of them stops the lane.
func (d *drain) batch() {
	d.verdicts, d.events = d.verdicts[:0], d.events[:0]
	ctx, stop := d.turn.Lease().Bind(d.crew.ctx)
	defer stop()
	ds := d.turn.Deliveries()
	for i, on := 0, true; on && i < len(ds) && d.may(ctx); i = len(d.verdicts) {
		on = d.next(ctx, ds[i:])
	}
	d.behind = 0
	if n := len(d.verdicts); n > 0 && d.verdicts[n-1].Fate == deferral.Buried && d.may(ctx) {
		d.behind = len(ds) - n
	}
	for _, rest := range ds[len(d.verdicts):] {
		d.verdicts = append(d.verdicts, deferral.Verdict{Delivery: rest, Fate: deferral.Return})
	}
}

// may tells whether another function may begin.
func (d *drain) may(ctx context.Context) bool { return ctx.Err() == nil && !d.crew.closing() }

// next runs the first of ds, with those behind it that the same function can
// take along, and tells whether the lane goes on.
func (d *drain) next(ctx context.Context, ds []*deferral.Delivery) bool {
	k, v, err := d.w.decode(ds[0])
	if err != nil {
		if d.w.said.first("unreadable", ds[0].Resource+" "+ds[0].ID) {
			d.w.log.WarnContext(ctx, "a write cannot be run by this process", "resource", ds[0].Resource, "id", ds[0].ID, "error", err)
		}
		d.w.left.leave(d.turn.Lane())
		d.crew.sched.soon(d.w.queue.ShardOf(d.turn.Lane()), leaveFor)
		return d.judged(unreadable(ds[0], err), err)
	}
	if ds[0].Attempt > d.w.cfg.MaxAttempts {
		v := d.w.exhausted(ds[0])
		return d.judged(v, errors.New(v.Cause))
	}
	vs := []any{v}
	for k.batch && len(vs) < len(ds) {
		next, v, err := d.w.decode(ds[len(vs)])
		if err != nil || next != k {
			break
		}
		vs = append(vs, v)
	}
	if len(vs) == 1 {
		return d.one(ctx, k, ds[0], v)
	}
	return d.several(ctx, k, ds[:len(vs)], vs)
}

func (d *drain) one(ctx context.Context, k *kind, w *deferral.Delivery, v any) bool {
	d.running = 1
	err := d.w.call(ctx, k, d.turn, []*deferral.Delivery{w}, []any{v}, false)
	d.running = 0
	return d.judged(d.w.judge(ctx, w, err), err)
}

// several runs a batch. When it fails, what did not take effect is run again
// one by one, so that the write that is to blame is found.
func (d *drain) several(ctx context.Context, k *kind, ds []*deferral.Delivery, vs []any) bool {
	d.running = len(ds)
	err := d.w.call(ctx, k, d.turn, ds, vs, false)
	d.running = 0
	done := len(ds)
	if err != nil {
		done = marksOf(err).applied
	}
	for _, w := range ds[:done] {
		d.judged(deferral.Verdict{Delivery: w, Fate: deferral.Done}, nil)
	}
	for i := done; i < len(ds); i++ {
		if !d.may(ctx) || !d.one(ctx, k, ds[i], vs[i]) {
			return false
		}
	}
	return true
}

// judged notes a verdict, and tells whether the next write may run before Redis
// has heard of it. One that is buried must be among the dead first: should this
// process die with the next one done, it would be delivered again behind it.
func (d *drain) judged(v deferral.Verdict, err error) bool {
	d.verdicts = append(d.verdicts, v)
	e := eventOf("", v.Delivery)
	e.Rest, e.Err = v.Rest, err
	switch v.Fate {
	case deferral.Done:
		d.crew.finished.Add(1)
		d.w.busy.over(d.turn.Lane())
		return true
	case deferral.Failed, deferral.Aside:
		e.Type = EventRetried
	case deferral.Return:
		e.Type = EventReturned
	case deferral.Buried:
		e.Type = EventBuried
	case deferral.Halted:
		e.Type = EventHalted
	}
	d.events = append(d.events, e)
	return v.Fate == deferral.Aside
}

// tell says what became of the writes, now that Redis knows. If the lock was not
// held any more, it has left those that failed to whoever runs them next.
func (d *drain) tell(ctx context.Context, held bool) {
	for _, e := range d.events {
		switch {
		case !held && e.Type != EventReturned:
			e.Type, e.Rest = EventLost, 0
		case e.Type == EventBuried, e.Type == EventHalted:
			d.w.log.ErrorContext(ctx, "a write is given up", "fate", string(e.Type), "kind", e.Kind, "resource", e.Resource,
				"id", e.ID, "attempt", e.Attempt, "error", e.Err)
		}
		d.w.observe(ctx, e)
	}
	d.events = d.events[:0]
}

// exited is what is left to say when a function has ended the goroutine.
func (d *drain) exited() {
	ctx, stop := d.turn.Lease().Bind(d.crew.ctx)
	defer stop()
	for i, w := range d.turn.Deliveries()[len(d.verdicts):] {
		v := deferral.Verdict{Delivery: w, Fate: deferral.Return}
		if i < d.running {
			v = d.w.judge(ctx, w, errExited)
		}
		d.judged(v, errExited)
	}
}

// settle reports the verdicts until Redis has heard them or the lock has
// expired. What is not heard by then is delivered again.
func (d *drain) settle(next int, goOn deferral.GoOn) (more bool, err error) {
	st := deferral.Settlement{Verdicts: d.verdicts, Next: next, GoOn: goOn, Lookback: d.w.cfg.Lookback}
	lease := d.turn.Lease()
	base := context.WithoutCancel(d.crew.ctx)
	for n := 1; ; n++ {
		if lease.Err() != nil {
			st.Next = 0 // what would be started now could not be kept
		}
		s, err := d.turn.Settle(script.Until(base, time.Now().Add(settling)), st)
		if err == nil {
			d.verdicts = d.verdicts[:0]
			d.tell(base, s.Held)
			return s.More, nil
		}
		if lease.Err() != nil || d.crew.ctx.Err() != nil {
			lease.End()
			d.crew.failed(err)
			d.w.log.WarnContext(base, "what became of some writes could not be reported; they are delivered again",
				"resource", d.turn.Resource(), "writes", len(st.Verdicts), "error", err)
			return false, err
		}
		if n == 1 {
			d.w.log.WarnContext(base, "what became of some writes could not be reported yet; trying again",
				"resource", d.turn.Resource(), "writes", len(st.Verdicts), "error", err)
		}
		sleep(lease.Context(), nil, script.Backoff(n))
	}
}

// report tells of writes whose payload something else has removed.
func (d *drain) report(torn []string) {
	for _, id := range torn {
		d.w.log.ErrorContext(d.crew.ctx, "a write in the queue has lost its payload and cannot run", "resource", d.turn.Resource(), "id", id)
		d.w.observe(d.crew.ctx, Event{Type: EventTorn, Resource: d.turn.Resource(), ID: id})
	}
}
