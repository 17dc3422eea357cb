package deferral

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
	"github.com/deferlock/deferlock/lock"
)

// The most that one claim may bring, so that no script holds Redis up: a claim
// of 1,000 takes 3 ms.
const (
	// MaxBatch is the most writes of one lane that are started at once.
	MaxBatch = 1000

	maxBatchBytes = 4 << 20
)

// Turn is the right to run the writes at the head of one lane: the lane's lock,
// and the writes that were started under it. It belongs to one goroutine. Who
// got a Turn ends it with [Turn.Settle]; one that is dropped ends when its lock
// expires.
type Turn struct {
	queue *Queue
	lane  string
	lease *lock.Lease
	keys  []string // what the scripts about the lane are sent with: the keys,
	args  []any    // and the first arguments
	batch []*Delivery
	torn  []string

	// lookback is the one the lane was entered with; a delivery that was
	// popped gives the lane back under the same.
	lookback time.Duration

	// unclear is set when a settlement may have been carried out unseen: the
	// lock it then finds missing was given back by itself.
	unclear bool
}

// Lane names the lane, for [Queue.Enter].
func (t *Turn) Lane() string { return t.lane }

// Resource is the lane's resource, "" for a write that stands alone.
func (t *Turn) Resource() string { return keyspace.ResourceOf(t.lane) }

// Lease is the lane's lock.
func (t *Turn) Lease() *lock.Lease { return t.lease }

// Deliveries are the writes that were started, oldest first. A turn got from
// [Queue.Admit] has none: the admitted write was never in the lane.
func (t *Turn) Deliveries() []*Delivery { return t.batch }

// checkLookback refuses what would hide a lane: a moment for it that lies ahead.
func checkLookback(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%w: the lookback is %v: want 0 or more", ErrInvalid, d)
	}
	return nil
}

// Torn names the writes that were found in the lane without a payload, which
// something other than deferlock removed: an evicting Redis, or a hand. They
// cannot run any more, and are in the lane no longer.
func (t *Turn) Torn() []string { return t.torn }

// Enter locks a lane and starts up to batch of its writes, in one round trip.
// It returns nil, and no error, when there is nothing to do in the lane now: it
// is locked, empty, resting or paused. The lookback is what the index of due
// lanes is kept by; see [Queue.Due].
func (q *Queue) Enter(ctx context.Context, lane string, batch int, lookback time.Duration) (*Turn, error) {
	if err := checkLookback(lookback); err != nil {
		return nil, err
	}
	return q.enter(ctx, q.locker.Bid(lane, true), batch, lookback)
}

func (q *Queue) enter(ctx context.Context, b lock.Bid, batch int, lookback time.Duration) (*Turn, error) {
	h := q.space.Of(b.Lane)
	t := q.turnOf(h, b, laneKeys(h, b.Lane))
	t.lookback = lookback
	var v []any
	lease, err := q.locker.Grant(ctx, b, func(ctx context.Context) (int64, bool, error) {
		r, err := q.sender.Run(ctx, claimScript, script.Wait{}, t.keys,
			append(t.args, clampBatch(batch), maxBatchBytes, lookback.Microseconds())...)
		if err != nil {
			return 0, false, err
		}
		var code int64
		code, v = codeOf(r.Value)
		return intAt(v, 1), code == 1, nil
	})
	if err != nil {
		if isUnclear(err) {
			q.locker.Withdraw(ctx, b)
		}
		return nil, fmt.Errorf("deferral: enter lane %q: %w", b.Lane, err)
	}
	if lease == nil {
		return nil, nil
	}
	t.lease = lease
	t.read(v)
	return t, nil
}

// turnOf prepares the turn that a bid may win; keys are those of lane.lua, and
// may have more behind them.
func (q *Queue) turnOf(h *keyspace.Shard, b lock.Bid, keys []string) *Turn {
	args := append(make([]any, 0, 8), b.Lane, h.Prefix, b.Token, b.TTL.Milliseconds())
	return &Turn{queue: q, lane: b.Lane, keys: keys, args: args}
}

func clampBatch(n int) int { return min(max(n, 1), MaxBatch) }

// read takes over what claim.lua and leave.lua reply with.
func (t *Turn) read(v []any) {
	now := intAt(v, 2)
	t.torn = stringsAt(v, 3)
	list := listAt(v, 4)
	t.batch = make([]*Delivery, 0, len(list)/6)
	for i := 0; i+5 < len(list); i += 6 {
		d := &Delivery{
			turn:    t,
			stamp:   intAt(list, i+1),
			Attempt: int(intAt(list, i+2)),
			Waited:  time.Duration(now-intAt(list, i+3)) * time.Microsecond,
			Cause:   stringAt(list, i+4),
			Fence:   t.lease.Fence(),
		}
		d.ID, d.Resource = stringAt(list, i), t.Resource()
		d.Err = openEnvelope([]byte(stringAt(list, i+5)), &d.Write)
		t.batch = append(t.batch, d)
	}
}

// Fate is what became of a write that was started.
type Fate string

// The fates. A rest is time in which a write must not start again. A write
// keeps its place in the lane, and so everything behind it waits, unless its
// fate says otherwise.
const (
	Done    Fate = "done"   // it took effect; it is gone
	Return  Fate = "return" // it did not really start; that is not counted
	Failed  Fate = "retry"  // it failed, and is tried again after the rest
	Aside   Fate = "aside"  // it failed, and joins the end of its lane after the rest
	Buried  Fate = "bury"   // it failed for good; it becomes a dead letter
	Halted  Fate = "halt"   // it failed for good; it keeps its place and the lane is paused
	Entered Fate = "enter"  // it failed when it ran directly, and takes the lane's head
)

// Verdict says what became of one write of a turn.
type Verdict struct {
	Delivery *Delivery
	Fate     Fate
	Rest     time.Duration
	Cause    string // why it failed; kept with the write, at most 512 bytes of it
}

// GoOn says when a turn that is settled may start the writes that wait next.
type GoOn string

// A turn that is draining a lane goes on whatever the age of the next write;
// one that ran a direct write looks whether the lane has become due.
const (
	Always  GoOn = "now"   // if any waits
	IfAlone GoOn = "alone" // unless another lane is due too
	IfDue   GoOn = "due"   // if the oldest has waited for the lookback
)

// Settlement is what [Turn.Settle] reports and asks for.
type Settlement struct {
	Verdicts []Verdict
	Next     int // start up to so many writes that wait next; 0: give the lock back
	GoOn     GoOn
	Lookback time.Duration
}

// Settled is how a settlement ended.
type Settled struct {
	// More says that the lock was kept and the turn has new deliveries.
	More bool

	// Held says that the lock was this turn's until now. Without it only Done
	// was carried out; other fates are left to whoever runs the writes next.
	// Return is carried out if nobody has started the write since.
	Held bool

	// Depth is how many writes still wait in the lane.
	Depth int

	// Entered says that a write whose fate was Entered is in the lane.
	Entered bool
}

// Settle reports what became of the turn's writes, and in the same round trip
// either starts the next ones or gives the lock back. A write without a verdict
// keeps its place and will be delivered again. After an error the turn still
// stands until its lock expires, and Settle may be repeated.
func (t *Turn) Settle(ctx context.Context, s Settlement) (Settled, error) {
	if err := checkLookback(s.Lookback); err != nil {
		return Settled{}, err
	}
	args := make([]any, 0, len(t.args)+6+7*len(s.Verdicts))
	args = append(args, t.args...)
	args = append(args, min(s.Next, MaxBatch), maxBatchBytes, s.Lookback.Microseconds(), string(s.GoOn), t.queue.cfg.MaxDead)
	args = appendVerdicts(args, s.Verdicts)
	wait := script.Wait{}
	if slices.ContainsFunc(s.Verdicts, func(v Verdict) bool { return v.Fate == Entered }) {
		wait = t.queue.wait()
	}
	var out Settled
	var reply script.Reply
	err := t.lease.Leave(ctx, func(ctx context.Context) (int64, bool, error) {
		var err error
		reply, err = t.queue.sender.Run(ctx, leaveScript, wait, t.keys, args...)
		if err != nil {
			return 0, false, err
		}
		code, v := codeOf(reply.Value)
		out.More = code == 1
		return intAt(v, 1), out.More, nil
	})
	if err != nil {
		t.unclear = t.unclear || isUnclear(err)
		return Settled{}, fmt.Errorf("deferral: settle lane %q: %w", t.lane, err)
	}
	_, v := codeOf(reply.Value)
	t.batch, t.torn = nil, nil
	if out.More {
		out.Held, out.Entered = true, true
		t.read(v)
		return out, nil
	}
	out.Held = intAt(v, 1) == 1 || reply.Repeated || t.unclear
	out.Depth = int(intAt(v, 2))
	out.Entered = intAt(v, 3) == 1
	if out.Entered && wait.Replicas > 0 {
		return out, t.queue.replicated(reply)
	}
	return out, nil
}

// appendVerdicts appends them as leave.lua takes them: those that are done first.
func appendVerdicts(args []any, vs []Verdict) []any {
	count := len(args)
	args = append(args, 0)
	done := 0
	for _, v := range vs {
		if v.Fate == Done {
			args = append(args, v.Delivery.ID, v.Delivery.stamp)
			done++
		}
	}
	args[count] = done
	for _, v := range vs {
		if v.Fate == Done {
			continue
		}
		args = append(args, string(v.Fate), v.Delivery.ID, v.Delivery.stamp,
			v.Delivery.Attempt, v.Rest.Microseconds(), cut(v.Cause, maxCause))
		if v.Fate == Entered {
			args = append(args, sealEnvelope(&v.Delivery.Write))
		}
	}
	return args
}

const maxCause = 512

// cut shortens s to at most n bytes without cutting a character in two.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// Direct makes the delivery of a write that was admitted, so that a verdict can
// be given on it should it fail.
func (t *Turn) Direct(w Write) *Delivery {
	return &Delivery{Write: w, Attempt: 1, Fence: t.lease.Fence(), turn: t, stamp: t.lease.Fence()}
}
