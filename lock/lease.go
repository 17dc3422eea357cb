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
	script *scripter
	handle *redislock.Lock

	ctx    context.Context
	cancel context.CancelCauseFunc

	// mu guards all below. A timer's function that finds ended set does
	// nothing; end waits for one that is under way.
	mu       sync.Mutex
	fence    int64
	began    time.Time // MaxHold counts from here
	deadline time.Time // the lock must be taken for lost from here on
	expire   *time.Timer
	renew    *time.Timer
	ended    bool
	renewing sync.WaitGroup
}

func newLease(ctx context.Context, l *Locker, b Bid, s *scripter, h *redislock.Lock) *Lease {
	ls := &Lease{locker: l, bid: b, script: s, handle: h, fence: s.fence, began: b.asked}
	ls.ctx, ls.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.expire = time.AfterFunc(time.Hour, func() { ls.cancel(ErrLost) })
	ls.heldLocked(b.asked, b.TTL)
	if b.keep {
		ls.renew = time.AfterFunc(ls.interval(), ls.renewNow)
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
func (ls *Lease) Context() context.Context { return ls.ctx }

// Release gives the lock back. It returns nil when the lock is not held by
// this lease any more, whether this call, an earlier one or its expiry ended
// it; whether it was held all the time is what [Lease.Context] tells. After an
// error the lock may still stand; it ends by itself after TTL, and Release may
// be called again.
func (ls *Lease) Release(ctx context.Context) error {
	ls.End()
	if err := ls.handle.Release(ctx); err != nil && !errors.Is(err, redislock.ErrLockNotHeld) {
		return fmt.Errorf("lock: release %q: %w", ls.Resource(), err)
	}
	return nil
}

// Leave is Release through a script of the caller's: leave runs in the place
// of redislock's release. It may delete the lock if the key holds the lease's
// token, and then reports false; or keep it for another TTL, and then reports
// true and the fence for what comes next. A lease that was kept goes on, and
// its MaxHold begins anew.
func (ls *Lease) Leave(ctx context.Context, leave func(context.Context) (fence int64, kept bool, err error)) error {
	asked := time.Now()
	kept := false
	ls.script.leave = func(ctx context.Context) (err error) {
		var fence int64
		if fence, kept, err = leave(ctx); err == nil && kept {
			ls.keep(asked, fence)
		}
		return err
	}
	err := ls.handle.Release(ctx)
	if err == nil && !kept {
		ls.End()
	}
	return err
}

// Extend renews the lease for another TTL from now. It fails with [ErrLost]
// when the lock is no longer this lease's, or has been held for MaxHold.
func (ls *Lease) Extend(ctx context.Context) error {
	ttl, ok := ls.remaining()
	if !ok {
		return ErrLost
	}
	asked := time.Now()
	err := ls.handle.Refresh(ctx, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		ls.cancel(ErrLost)
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("lock: extend %q: %w", ls.Resource(), err)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.heldLocked(asked, ttl)
	return nil
}

// Lift gives the lease a new fence that is greater than above. It is for a
// holder whose fence the database finds too small although it does hold the
// lock: Redis has lost its clock, and the database's number sets it right. It
// fails with [ErrLost] when the lock is not this lease's.
func (ls *Lease) Lift(ctx context.Context, above int64) error {
	r, err := script.Run(ctx, ls.locker.rdb, stampScript,
		[]string{ls.bid.Key, ls.bid.Clock}, ls.bid.Token, strconv.FormatInt(above, 10))
	if err != nil {
		return fmt.Errorf("lock: lift the fence of %q: %w", ls.Resource(), err)
	}
	mine, fence := stampReply(r.Value)
	if !mine {
		return ErrLost
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.fence = fence
	return nil
}

// End stops the renewal and ends the context without a word to Redis: the lock
// ends by itself after TTL. For a holder whose script has already deleted it.
func (ls *Lease) End() {
	ls.mu.Lock()
	ls.ended = true
	ls.expire.Stop()
	if ls.renew != nil {
		ls.renew.Stop()
	}
	ls.mu.Unlock()
	ls.cancel(nil)
	ls.renewing.Wait()
}

// interval is how often the lock is renewed: two renewals may fail before the
// lease is in danger.
func (ls *Lease) interval() time.Duration { return ls.bid.TTL / 3 }

// heldLocked notes that Redis keeps the lock for ttl at least, counted from
// asked. A tenth of it is given up, so that the work hears of the loss and can
// stop before the lock is another's.
func (ls *Lease) heldLocked(asked time.Time, ttl time.Duration) {
	ls.deadline = asked.Add(ttl - ttl/10)
	if !ls.ended {
		ls.expire.Reset(time.Until(ls.deadline))
	}
}

// keep notes that the lock was kept for what comes next, with a new fence.
func (ls *Lease) keep(asked time.Time, fence int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.fence, ls.began = fence, asked
	ls.heldLocked(asked, ls.bid.TTL)
	if ls.renew != nil && !ls.ended {
		ls.renew.Reset(ls.interval())
	}
}

// remaining is for how long the lock may be asked for now.
func (ls *Lease) remaining() (time.Duration, bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ttl := min(ls.bid.TTL, time.Until(ls.began.Add(ls.locker.cfg.MaxHold)))
	return ttl, !ls.ended && ttl >= 2*time.Millisecond && ls.ctx.Err() == nil
}

// renewNow is run by the renew timer.
func (ls *Lease) renewNow() {
	ls.mu.Lock()
	if ls.ended {
		ls.mu.Unlock()
		return
	}
	ls.renewing.Add(1)
	deadline := ls.deadline
	ls.mu.Unlock()
	defer ls.renewing.Done()

	ctx, cancel := context.WithDeadline(ls.ctx, deadline)
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
