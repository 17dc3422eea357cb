package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	script scripter
	handle *redislock.Lock
	base   context.Context // what the lease was asked for with, for its values

	// mu guards all below. A timer's function that finds ended set does
	// nothing; End waits for one that is under way.
	mu       sync.Mutex
	err      error           // what Err returns
	bound    []*binding      // the contexts of Bind that end with the lease
	ctx      context.Context // what Context returns, once it has been asked for
	fence    int64
	began    time.Time // MaxHold counts from here
	deadline time.Time // the lock must be taken for lost from here on
	expire   *time.Timer
	renew    *time.Timer
	leaving  bool // a renewal that finds no lock may have come after the leave that deleted it
	ended    bool
	renewing sync.WaitGroup
}

// start begins the life of a lease that was got.
func (ls *Lease) start(h *redislock.Lock) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	b := &ls.script.bid
	ls.handle, ls.fence, ls.began = h, ls.script.fence, b.asked
	ls.heldLocked(b.asked)
	// Most leases are over long before their first renewal. Until then one timer
	// does: the renewal comes before the deadline, and sets the other.
	if b.keep && time.Until(ls.deadline) > ls.interval() {
		ls.renew = time.AfterFunc(ls.interval(), ls.renewNow)
		return
	}
	ls.watchLocked()
	if b.keep {
		ls.renew = time.AfterFunc(0, ls.renewNow)
	}
}

// Resource is what is locked.
func (ls *Lease) Resource() string { return keyspace.ResourceOf(ls.script.bid.Lane) }

// Token is what the lock's key holds while the lease lives.
func (ls *Lease) Token() string { return ls.script.bid.Token }

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
	return ls.contextLocked()
}

// contextLocked makes the lease's context when it is first asked for: most
// leases are over before anybody does.
func (ls *Lease) contextLocked() context.Context {
	if ls.ctx == nil {
		ls.ctx, _ = ls.bindLocked(context.WithoutCancel(ls.base))
	}
	return ls.ctx
}

// Bind derives from ctx a context that also ends as [Lease.Context] does, and
// with the same cause. The stop function ends it and must be called.
func (ls *Lease) Bind(ctx context.Context) (_ context.Context, stop func()) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ctx, b := ls.bindLocked(ctx)
	return ctx, func() {
		b.cancel(nil)
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if i := slices.Index(ls.bound, b); i >= 0 {
			ls.bound = slices.Delete(ls.bound, i, i+1)
		}
	}
}

// binding is a context that ends with a lease.
type binding struct{ cancel context.CancelCauseFunc }

func (ls *Lease) bindLocked(ctx context.Context) (context.Context, *binding) {
	ctx, cancel := context.WithCancelCause(ctx)
	b := &binding{cancel}
	if ls.err != nil {
		cancel(ls.err)
	} else {
		ls.bound = append(ls.bound, b)
	}
	return ctx, b
}

// Err is nil while the lock can be relied on, then the cause with which the
// lease's context has ended: [ErrLost], or context.Canceled after its release.
func (ls *Lease) Err() error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.err
}

// overLocked ends the contexts that end with the lease.
func (ls *Lease) overLocked(err error) {
	if ls.err != nil {
		return
	}
	ls.err = err
	for _, b := range ls.bound {
		b.cancel(err)
	}
	ls.bound = nil
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
	ls.script.leave = func(ctx context.Context) (err error) {
		fence, kept, err = leave(ctx)
		return err
	}
	ls.setLeaving(true)
	defer ls.setLeaving(false)
	err := ls.handle.Release(ctx)
	ls.script.leave = nil
	switch {
	case err != nil:
		return err
	case kept:
		ls.keep(asked, fence)
	default:
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
	err := ls.handle.Refresh(ctx, ls.script.bid.TTL, nil)
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
// lock: Redis has lost its clock, which has stepped back besides, and the
// database's number sets it right. It fails with [ErrLost] when the lock is not
// this lease's, or when Redis's clock has passed above and so never lost it: then
// another Redis has given that fence, and this one has been cut off. It fails
// without having done anything when above is no fence that was ever given.
func (ls *Lease) Lift(ctx context.Context, above int64) error {
	if above < 0 || above > maxFence {
		return fmt.Errorf("lock: lift the fence of %q above %d: no fence is as great", ls.Resource(), above)
	}
	r, err := script.Run(ctx, ls.locker.rdb, stampScript,
		[]string{ls.script.bid.Key, ls.script.bid.Clock}, ls.script.bid.Token, strconv.FormatInt(above, 10))
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
	ls.overLocked(context.Canceled)
	ls.mu.Unlock()
	ls.renewing.Wait()
}

// interval is how often the lock is renewed: two renewals may fail before the
// lease is in danger.
func (ls *Lease) interval() time.Duration { return ls.script.bid.TTL / 3 }

// heldLocked notes that Redis keeps the lock for a TTL at least, counted from
// asked. A tenth of it is given up, so that the work hears of the loss and can
// stop before the lock is another's. What is known already is never shortened.
func (ls *Lease) heldLocked(asked time.Time) {
	until := asked.Add(ls.script.bid.TTL - ls.script.bid.TTL/10)
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
		ls.overLocked(ErrLost) // now, not when the timer gets round to it
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
		ls.overLocked(ErrLost)
	}
}

// lose ends the context after Redis has said that the lock is not this lease's.
func (ls *Lease) lose() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.leaving {
		ls.overLocked(ErrLost)
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
	if ls.err != nil {
		ls.err, ls.ctx = nil, nil
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
	return !ls.ended && ls.err == nil
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
	held, deadline := ls.contextLocked(), ls.deadline
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
		next = ls.script.bid.TTL / 12
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
