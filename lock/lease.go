package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/bsm/redislock"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// Lease is a lock that was got. Its holder releases it when the work is done.
type Lease struct {
	locker *Locker
	bid    Bid
	handle *redislock.Lock

	// mu guards all below. A timer's function that finds ended set does
	// nothing; End waits for one that is under way.
	mu       sync.Mutex
	ctx      context.Context
	cancel   context.CancelCauseFunc
	fence    int64
	began    time.Time // MaxHold counts from here
	deadline time.Time // the lock must be taken for lost from here on
	expire   *time.Timer
	renew    *time.Timer
	leaving  bool // a renewal that finds no lock may have come after the leave that deleted it
	ended    bool
	renewing sync.WaitGroup
}

func newLease(ctx context.Context, l *Locker, b Bid, fence int64, h *redislock.Lock) *Lease {
	ls := &Lease{locker: l, bid: b, handle: h, fence: fence, began: b.asked}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.ctx, ls.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	ls.heldLocked(b.asked)
	// Most leases are over long before their first renewal. Until then one timer
	// does: the renewal comes before the deadline, and sets the other.
	if b.keep && time.Until(ls.deadline) > ls.interval() {
		ls.renew = time.AfterFunc(ls.interval(), ls.renewNow)
		return ls
	}
	ls.watchLocked()
	if b.keep {
		ls.renew = time.AfterFunc(0, ls.renewNow)
	}
	return ls
}

// Resource is what is locked.
func (ls *Lease) Resource() string { return keyspace.ResourceOf(ls.bid.Lane) }

// Token is what the lock's key holds while the lease lives.
func (ls *Lease) Token() string { return ls.bid.Token }

// Fence is greater than the fence of every earlier holder of the resource.
func (ls *Lease) Fence() int64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.fence
}

// Context carries the values of the context the lease was asked for with, but
// not its end: it ends with [ErrLost] as its cause when the lock can no longer
// be relied on, at a moment counted from before it was asked for and so before
// Redis can give the lock to another, or when the lease is released.
func (ls *Lease) Context() context.Context {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.ctx
}

// Release gives the lock back. It returns nil when the lock is not held by
// this lease any more, whether this call, an earlier one or its expiry ended
// it; whether it was held all the time is what [Lease.Context] tells. When ctx
// has ended already Release tries all the same, for half a second. After an
// error the lock may still stand; it ends by itself after TTL, and Release may
// be called again.
func (ls *Lease) Release(ctx context.Context) error {
	ls.End()
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = detached(ctx)
		defer cancel()
	}
	if err := ls.handle.Release(ctx); err != nil && !errors.Is(err, redislock.ErrLockNotHeld) {
		return fmt.Errorf("lock: release %q: %w", ls.Resource(), err)
	}
	return nil
}

// Leave is Release through a script of the caller's: leave runs in the place
// of redislock's release. It may delete the lock if the key holds the lease's
// token, and then reports false; or keep it for another TTL, and then reports
// true and the fence for what comes next. A lease that was kept goes on, its
// MaxHold begins anew, and should its context have ended it has a new one. After
// an error of leave, which Leave returns, nothing has changed.
func (ls *Lease) Leave(ctx context.Context, leave func(context.Context) (fence int64, kept bool, err error)) error {
	asked := time.Now()
	var fence int64
	var kept bool
	s := &scripter{rdb: ls.locker.rdb, bid: ls.bid, leave: func(ctx context.Context) (err error) {
		fence, kept, err = leave(ctx)
		return err
	}}
	handle := *ls.handle
	handle.Client = redislock.New(s)
	ls.setLeaving(true)
	defer ls.setLeaving(false)
	if err := handle.Release(ctx); err != nil {
		return err
	}
	if kept {
		ls.keep(asked, fence)
	} else {
		ls.End()
	}
	return nil
}

// Extend renews the lease for another TTL from now. It fails with [ErrLost]
// when the lock is no longer this lease's, or has been held for MaxHold.
func (ls *Lease) Extend(ctx context.Context) error {
	if !ls.alive() {
		return ErrLost
	}
	asked := time.Now()
	// Always for a whole TTL. Shorter towards the end of MaxHold, it would leave
	// hardly any time between the word of the loss and the loss, and a late one
	// could shorten what a leave has kept.
	err := ls.handle.Refresh(ctx, ls.bid.TTL, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		ls.lose()
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("lock: extend %q: %w", ls.Resource(), err)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.heldLocked(asked)
	return nil
}

// Lift gives the lease a new fence that is greater than above. It is for a
// holder whose fence the database finds too small although it does hold the
// lock: Redis has lost its clock, and the database's number sets it right. It
// fails with [ErrLost] when the lock is not this lease's, and without having
// done anything when above is no fence that was ever given.
func (ls *Lease) Lift(ctx context.Context, above int64) error {
	if above < 0 || above > maxFence {
		return fmt.Errorf("lock: lift the fence of %q above %d: no fence is as great", ls.Resource(), above)
	}
	r, err := script.Run(ctx, ls.locker.rdb, stampScript,
		[]string{ls.bid.Key, ls.bid.Clock}, ls.bid.Token, strconv.FormatInt(above, 10))
	if err != nil {
		return fmt.Errorf("lock: lift the fence of %q: %w", ls.Resource(), err)
	}
	mine, fence := stampReply(r.Value)
	if !mine {
		ls.lose()
		return ErrLost
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.fence = max(ls.fence, fence)
	return nil
}

// maxFence is the greatest fence until the year 2112. A greater one in a database
// is damage, and would drive the clock out of what Redis's numbers can hold.
const maxFence = 1 << 52

// End stops the renewal and ends the context without a word to Redis: the lock
// ends by itself after TTL. For a holder whose script has already deleted it.
// A renewal that is under way is waited for.
func (ls *Lease) End() {
	ls.mu.Lock()
	ls.ended = true
	if ls.expire != nil {
		ls.expire.Stop()
	}
	if ls.renew != nil {
		ls.renew.Stop()
	}
	ls.cancel(nil)
	ls.mu.Unlock()
	ls.renewing.Wait()
}

// interval is how often the lock is renewed: two renewals may fail before the
// lease is in danger.
func (ls *Lease) interval() time.Duration { return ls.bid.TTL / 3 }

// heldLocked notes that Redis keeps the lock for a TTL at least, counted from
// asked. A tenth of it is given up, so that the work hears of the loss and can
// stop before the lock is another's. What is known already is never shortened.
func (ls *Lease) heldLocked(asked time.Time) {
	until := asked.Add(ls.bid.TTL - ls.bid.TTL/10)
	if end := ls.began.Add(ls.locker.cfg.MaxHold); until.After(end) {
		until = end
	}
	if until.After(ls.deadline) {
		ls.deadline = until
	}
	if ls.ended {
		return
	}
	left := time.Until(ls.deadline)
	if left <= 0 {
		ls.cancel(ErrLost) // now, not when the timer gets round to it
		return
	}
	if ls.expire != nil {
		ls.expire.Reset(left)
	}
}

// watchLocked sets the timer that ends the context at the deadline.
func (ls *Lease) watchLocked() {
	if ls.expire == nil && !ls.ended {
		ls.expire = time.AfterFunc(time.Until(ls.deadline), ls.expireNow)
	}
}

// expireNow is run by the expire timer. The deadline may have been moved since
// the timer fired.
func (ls *Lease) expireNow() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.ended && !time.Now().Before(ls.deadline) {
		ls.cancel(ErrLost)
	}
}

// lose ends the context after Redis has said that the lock is not this lease's.
func (ls *Lease) lose() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.leaving {
		ls.cancel(ErrLost)
	}
}

func (ls *Lease) setLeaving(v bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.leaving = v
}

// keep notes that the lock was kept for what comes next, with a new fence.
func (ls *Lease) keep(asked time.Time, fence int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.fence, ls.began = max(ls.fence, fence), asked
	if ls.ended {
		return
	}
	if ls.ctx.Err() != nil {
		ls.ctx, ls.cancel = context.WithCancelCause(context.WithoutCancel(ls.ctx))
	}
	ls.heldLocked(asked)
	if ls.renew != nil {
		ls.renew.Reset(ls.interval())
	}
}

// alive says that the lock may still be renewed; the end of MaxHold has ended
// the context.
func (ls *Lease) alive() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return !ls.ended && ls.ctx.Err() == nil
}

// renewNow is run by the renew timer.
func (ls *Lease) renewNow() {
	ls.mu.Lock()
	if ls.ended {
		ls.mu.Unlock()
		return
	}
	ls.watchLocked()
	ls.renewing.Add(1)
	held, deadline := ls.ctx, ls.deadline
	ls.mu.Unlock()
	defer ls.renewing.Done()

	// One that hangs on a dead connection leaves time for another on a new one.
	if soon := time.Now().Add(ls.interval()); soon.Before(deadline) {
		deadline = soon
	}
	ctx, cancel := context.WithDeadline(held, deadline)
	defer cancel()
	next := ls.interval()
	switch err := ls.Extend(ctx); {
	case errors.Is(err, ErrLost):
		return // by now the expire timer, or Extend, has ended the context
	case err != nil:
		next = ls.bid.TTL / 12
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.ended {
		ls.renew.Reset(next)
	}
}

func stampReply(reply any) (mine bool, n int64) {
	r, ok := reply.([]any)
	if !ok || len(r) != 2 {
		return false, 0
	}
	code, _ := r[0].(int64)
	switch v := r[1].(type) {
	case int64:
		n = v
	case string:
		n, _ = strconv.ParseInt(v, 10, 64)
	}
	return code == 1, n
}
