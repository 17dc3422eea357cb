package deferral

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	maxPrevious = 365 * 24 * time.Hour
	popAtOnce   = 16

	// unreadableRest is how long a write that this process cannot read is left
	// for one that can.
	unreadableRest = time.Second
)

// Delivery is a write that was started and is its receiver's for LockTTL. The
// receiver ends it with Ack, Retry or Bury.
type Delivery struct {
	Write

	// Attempt counts the starts of this write, this one included.
	Attempt int

	// Fence is greater than that of every earlier delivery of the resource.
	Fence int64

	// Waited is how long ago the write was pushed.
	Waited time.Duration

	// Cause is why the last attempt failed, "" if there was none.
	Cause string

	// Err is not nil when the stored write cannot be read by this release; only
	// ID and Resource are set then. Pop does not return such a write.
	Err error

	turn  *Turn
	stamp int64
}

// Stamp is the write's place in the order of its resource.
func (d *Delivery) Stamp() int64 { return d.stamp }

// Pop takes up to num writes that were pushed at least previous ago, at most
// one of each resource, and those that were popped earlier and not acknowledged
// within LockTTL. Two that pop at once never get the same write. It does not
// wait: none due is no error. With an error, the deliveries that are returned
// are good all the same.
func (q *Queue) Pop(ctx context.Context, num int, previous time.Duration) ([]*Delivery, error) {
	switch {
	case num < 1 || num > MaxBatch:
		return nil, fmt.Errorf("%w: Pop's num is %d: want 1 to %d", ErrInvalid, num, MaxBatch)
	case previous < 0 || previous > maxPrevious:
		return nil, fmt.Errorf("%w: Pop's previous is %v: want 0 to %v", ErrInvalid, previous, maxPrevious)
	}
	var out []*Delivery
	first := int(q.turn.Add(1))
	for i := range q.cfg.Shards {
		for again := true; again && len(out) < num; {
			due, err := q.Due(ctx, (first+i)%q.cfg.Shards, num-len(out), previous, 0)
			if err != nil {
				return out, err
			}
			got, err := q.popLanes(ctx, due.Lanes, previous)
			out = append(out, got...)
			if err != nil {
				return out, err
			}
			again = due.Next == 0
		}
	}
	return out, nil
}

// popLanes starts the head of each lane, several at once, and keeps their order.
func (q *Queue) popLanes(ctx context.Context, lanes []string, previous time.Duration) ([]*Delivery, error) {
	turns, errs := make([]*Turn, len(lanes)), make([]error, len(lanes))
	var wg sync.WaitGroup
	free := make(chan struct{}, popAtOnce)
	for i, lane := range lanes {
		free <- struct{}{}
		wg.Go(func() {
			turns[i], errs[i] = q.enter(ctx, q.locker.Bid(lane, false), 1, previous)
			<-free
		})
	}
	wg.Wait()
	var out []*Delivery
	for i, t := range turns {
		switch {
		case t == nil:
		case len(t.batch) == 0 || t.batch[0].Err != nil:
			errs[i] = t.giveBack(ctx)
		default:
			out = append(out, t.batch[0])
		}
	}
	return out, errors.Join(errs...)
}

// giveBack ends a turn whose writes this process cannot read: they stay where
// they are, uncounted, and the lane says why.
func (t *Turn) giveBack(ctx context.Context) error {
	s := Settlement{Lookback: t.lookback, GoOn: Always}
	for _, d := range t.batch {
		s.Verdicts = append(s.Verdicts, Verdict{Delivery: d, Fate: Return, Rest: unreadableRest, Cause: d.Err.Error()})
	}
	_, err := t.Settle(ctx, s)
	return err
}

// Ack says that the write took effect. It is gone, and the next one of its
// resource may start. Acknowledging late, or twice, does no harm, not even to a
// newer write with the same ID.
func (d *Delivery) Ack(ctx context.Context) error {
	_, err := d.settle(ctx, Verdict{Fate: Done})
	return err
}

// Retry says that the write failed for cause. It keeps its place, so that its
// resource waits with it, and is delivered again after the time of after. It
// fails with [ErrLost] when the delivery has expired; it is delivered again then
// without waiting.
func (d *Delivery) Retry(ctx context.Context, after time.Duration, cause error) error {
	if after < 0 || after > maxDelay {
		return fmt.Errorf("%w: Retry's after is %v: want 0 to %v", ErrInvalid, after, maxDelay)
	}
	return d.fail(ctx, Verdict{Fate: Failed, Rest: after, Cause: textOf(cause)})
}

// Bury says that the write failed for cause and is not to be tried again. It
// becomes a dead letter, and the next one of its resource may start. It fails
// with [ErrLost] when the delivery has expired.
func (d *Delivery) Bury(ctx context.Context, cause error) error {
	return d.fail(ctx, Verdict{Fate: Buried, Cause: textOf(cause)})
}

// Extend keeps the delivery for another LockTTL from now, up to MaxHold in all.
// It fails with [ErrLost] when the delivery has expired.
func (d *Delivery) Extend(ctx context.Context) error {
	return d.turn.lease.Extend(ctx)
}

func (d *Delivery) fail(ctx context.Context, v Verdict) error {
	s, err := d.settle(ctx, v)
	if err == nil && !s.Held {
		return fmt.Errorf("deferral: write %q: %w", d.ID, ErrLost)
	}
	return err
}

func (d *Delivery) settle(ctx context.Context, v Verdict) (Settled, error) {
	v.Delivery = d
	return d.turn.Settle(ctx, Settlement{Verdicts: []Verdict{v}, GoOn: Always, Lookback: d.turn.lookback})
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
