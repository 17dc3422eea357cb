package linear_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/lock"
)

// fates are what becomes of a write that was started; most take effect.
var fates = []deferral.Fate{
	deferral.Done, deferral.Done, deferral.Done, deferral.Done, deferral.Done,
	deferral.Return, deferral.Failed, deferral.Failed, deferral.Buried,
}

// finish ends what a turn is doing now. One that is handed what waits next stays
// open.
func (c *client) finish(t *turn, fate func() deferral.Fate, next int) {
	c.open = slices.DeleteFunc(c.open, func(o *turn) bool { return o == t })
	switch {
	case t.lease != nil:
		c.do(call{op: "release", resource: t.resource, turn: t.number}, func(ctx context.Context) (answer, error) {
			return answer{}, t.lease.Release(ctx)
		})
	case t.popped != nil:
		c.finishPopped(t, fate())
	default:
		c.settle(t, fate, next)
	}
}

// abandon leaves a turn as a process does that dies.
func (c *client) abandon(t *turn) {
	c.open = slices.DeleteFunc(c.open, func(o *turn) bool { return o == t })
	switch {
	case t.lease != nil:
		t.lease.End()
	case t.turn != nil:
		t.turn.Lease().End()
	}
}

func (c *client) settle(t *turn, fate func() deferral.Fate, next int) {
	in := call{op: "settle", resource: t.resource, turn: t.number, next: next}
	s := deferral.Settlement{Next: next, GoOn: deferral.Always}
	judge := func(d *deferral.Delivery, f deferral.Fate) {
		in.verdicts = append(in.verdicts, verdict{start{d.ID, d.Attempt, d.Stamp()}, f})
		s.Verdicts = append(s.Verdicts, deferral.Verdict{Delivery: d, Fate: f, Cause: "cause"})
	}
	for _, d := range t.turn.Deliveries() {
		judge(d, fate())
	}
	if t.direct != "" && fate() != deferral.Done {
		judge(t.turn.Direct(c.write(t.resource, t.direct)), deferral.Entered)
	}
	t.direct = ""
	out := c.do(in, func(ctx context.Context) (answer, error) {
		got, err := t.turn.Settle(ctx, s)
		for n := 0; errors.Is(err, deferral.ErrUnclear) && n < 20; n++ { // it may be repeated
			got, err = t.turn.Settle(ctx, s)
		}
		a := answer{won: got.More, held: got.Held, count: got.Depth, entered: got.Entered}
		if got.More {
			a.fence, a.batch = t.turn.Lease().Fence(), starts(t.turn)
		}
		return a, err
	})
	if out.won {
		c.open = append(c.open, t)
	}
}

// finishPopped ends a delivery by the methods it has for that.
func (c *client) finishPopped(t *turn, fate deferral.Fate) {
	if fate == deferral.Return {
		fate = deferral.Failed
	}
	d := t.popped
	in := call{op: "settle", resource: t.resource, turn: t.number, verdicts: []verdict{{start{d.ID, d.Attempt, d.Stamp()}, fate}}}
	c.do(in, func(ctx context.Context) (answer, error) {
		a, err := answer{mute: true}, error(nil)
		switch fate {
		case deferral.Done:
			err = d.Ack(ctx)
		case deferral.Failed:
			err = d.Retry(ctx, 0, fmt.Errorf("cause"))
		case deferral.Buried:
			err = d.Bury(ctx, fmt.Errorf("cause"))
		}
		if errors.Is(err, lock.ErrLost) {
			err = nil
		}
		return a, err
	})
}
