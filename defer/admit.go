package deferral

import (
	"context"
	"fmt"
	"time"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// Why says why a write has to wait.
type Why int

// The reasons to wait. [Ran] is none.
const (
	Ran     Why = iota // it did not have to
	Held               // another write to the resource is running
	Behind             // other writes wait for the resource
	Paused             // the lane is paused
	Already            // this write was in the queue already
	AtHead             // it ran, failed, and is tried again before all others
)

// String names the reason in a word.
func (w Why) String() string {
	names := []string{"ran", "held", "behind", "paused", "already", "failed"}
	if w < 0 || int(w) >= len(names) {
		return fmt.Sprintf("Why(%d)", int(w))
	}
	return names[w]
}

// Admission is the answer to [Queue.Admit].
type Admission struct {
	ID string

	// Turn is not nil when the write may run now; its holder runs it and then
	// settles the turn. Otherwise the write is in the queue.
	Turn *Turn

	Why      Why
	Ahead    int           // how many writes are before it in its lane
	HeldFor  time.Duration // how long the lock still lives if it is not renewed; negative: without end, 0: not locked
	Attended bool          // somebody runs this queue
}

// Admit lets w run now, if nobody holds the lock of its resource and no write
// waits for it, or else stores it like [Queue.Push]; in one round trip and
// without ever waiting. A write with a Delay or At is refused: it cannot run
// now. The errors are those of Push; with ErrNotReplicated the admission is
// returned too.
func (q *Queue) Admit(ctx context.Context, w Write) (*Admission, error) {
	if err := q.check(&w); err != nil {
		return nil, err
	}
	if w.Delay != 0 || !w.At.IsZero() {
		return nil, fmt.Errorf("%w: a write with Delay or At cannot be admitted", ErrInvalid)
	}
	if err := q.ensure(ctx); err != nil {
		return nil, fmt.Errorf("deferral: admit %q: %w", w.ID, err)
	}
	lane := keyspace.LaneOf(w.Resource, w.ID)
	h := q.space.Of(lane)
	a := &Admission{ID: w.ID}
	b := q.locker.Bid(lane, true)
	t := q.turnOf(h, b, writeKeys(h, w.Resource, w.ID))
	var reply script.Reply
	lease, err := q.locker.Grant(ctx, b, func(ctx context.Context) (int64, bool, error) {
		var err error
		reply, err = q.sender.Run(ctx, admitScript, q.wait(), t.keys,
			append(t.args, w.ID, sealEnvelope(&w), q.cfg.MaxDepth)...)
		if err != nil {
			return 0, false, err
		}
		code, v := codeOf(reply.Value)
		if code < 0 {
			return 0, false, refusal(code, v)
		}
		return intAt(v, 1), code == 1, nil
	})
	// An attempt whose reply was lost may have got the lock, and the one after it
	// have found that another had pushed the same write meanwhile.
	if lease == nil && (isUnclear(err) || reply.Repeated) {
		q.locker.Withdraw(ctx, b)
	}
	if err != nil {
		return nil, fmt.Errorf("deferral: admit %q: %w", w.ID, err)
	}
	if lease != nil {
		t.lease, t.keys = lease, t.keys[:len(t.keys)-1] // without the write's
		a.Turn = t
		return a, nil
	}
	_, v := codeOf(reply.Value)
	a.Why, a.Ahead, a.Attended = Why(intAt(v, 1)), int(intAt(v, 2)), intAt(v, 4) == 1
	switch life := intAt(v, 3); {
	case life > 0:
		a.HeldFor = time.Duration(life) * time.Millisecond
	case life == -1:
		a.HeldFor = -1
	}
	return a, q.replicated(reply)
}
