// Package lock gives out per-resource locks in Redis, each with a fence.
//
// The lock is [github.com/bsm/redislock]'s: its key holds redislock's value,
// and a process that uses plain redislock on the same key excludes this
// package and is excluded by it. On top of it come
//
//   - a single attempt that never waits ([Locker.Acquire], [ErrHeld]);
//   - a fence: a number that is greater for every later holder of a resource,
//     for a database to refuse a holder that is late ([Lease.Fence]);
//   - renewal while the work runs, never beyond [Config.MaxHold];
//   - word of the loss: the lease's context ends with [ErrLost] before another
//     process can get the lock ([Lease.Context]).
//
// What a lock cannot do: stop a holder that was paused, woke after its lock
// had expired and did not look at its context. Only the database can, with the
// fence. And a lock taken here says nothing about writes that wait for the same
// resource in a deferral queue of the same Name; for those use package worker.
//
// [Locker.Bid] and [Locker.Grant] are for package deferral, whose scripts take
// the lock and look at the resource's lane in one atomic step.
package lock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

//go:embed stamp.lua
var stampSource string

var stampScript = script.New(stampSource)

var (
	// ErrHeld is returned when somebody else holds the lock. errors.As with a
	// *[HeldError] tells for how long.
	ErrHeld = errors.New("lock: held by another")

	// ErrLost is the cause with which a lease's context ends when the lock can
	// no longer be relied on: it could not be renewed in time, it was freed by
	// force, or it was held for MaxHold.
	ErrLost = errors.New("lock: lost")

	// ErrResource is wrapped by the error for a resource whose name is not
	// allowed: empty, over 1024 bytes, not UTF-8, or with a zero byte.
	ErrResource = errors.New("lock: resource")
)

// HeldError says who is in the way. It is an [ErrHeld].
type HeldError struct {
	Resource string

	// For is how long the holder's lock still lives if it is not renewed: 0
	// when it has just ended, negative when it has no end at all. A lock
	// without an end was not made by this package and has to be removed by an
	// operator.
	For time.Duration
}

// Error describes the lock that was in the way.
func (e *HeldError) Error() string {
	if e.For < 0 {
		return fmt.Sprintf("%v: %q, without an end", ErrHeld, e.Resource)
	}
	return fmt.Sprintf("%v: %q, for %v", ErrHeld, e.Resource, e.For)
}

// Is makes a HeldError an [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Config says how locks are kept. The zero value of a field is its default.
type Config struct {
	// Name separates the locks of one application from those of another; the
	// same in every process. Required, at most 128 bytes, without braces.
	Name string

	// Shards spreads resources over that many slots of a Redis Cluster; the
	// same in every process. Default 1.
	Shards int

	// TTL is how long a lock outlives a holder that died. Default 10 s, at
	// least 50 ms, at most 1 h.
	TTL time.Duration

	// MaxHold is how long a lock is renewed at the most, so that work that
	// hangs does not block its resource for ever. Default 10 minutes; at least
	// TTL, at most 24 h.
	MaxHold time.Duration
}

// The bounds and defaults of a lock's life, for packages that pass them on.
const (
	MinTTL         = 50 * time.Millisecond
	MaxTTL         = time.Hour
	DefaultTTL     = 10 * time.Second
	MaxMaxHold     = 24 * time.Hour
	DefaultMaxHold = 10 * time.Minute
)

func (c Config) validate() (Config, error) {
	if c.Shards == 0 {
		c.Shards = 1
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.MaxHold == 0 {
		c.MaxHold = max(DefaultMaxHold, c.TTL)
	}
	switch {
	case c.TTL < MinTTL || c.TTL > MaxTTL:
		return c, fmt.Errorf("lock: Config.TTL is %v: want %v to %v", c.TTL, MinTTL, MaxTTL)
	case c.MaxHold < c.TTL || c.MaxHold > MaxMaxHold:
		return c, fmt.Errorf("lock: Config.MaxHold is %v: want %v (TTL) to %v", c.MaxHold, c.TTL, MaxMaxHold)
	}
	return c, nil
}

// Locker gives out the locks of one Name. It is safe for concurrent use and
// has nothing to close.
type Locker struct {
	rdb   redis.UniversalClient
	space *keyspace.Space
	cfg   Config
}

// New returns a Locker that keeps its locks in rdb. It sends nothing.
func New(rdb redis.UniversalClient, cfg Config) (*Locker, error) {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("lock: New needs a Redis client")
	}
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	space, err := keyspace.New(cfg.Name, cfg.Shards)
	if err != nil {
		return nil, fmt.Errorf("lock: Config.%w", err)
	}
	return &Locker{rdb: rdb, space: space, cfg: cfg}, nil
}

// Key is where the lock of resource is kept, for a process that uses plain
// redislock beside this package.
func (l *Locker) Key(resource string) string {
	return l.space.Of(resource).Lock(resource)
}

// Acquire tries once to lock resource and returns at once. The lease is
// renewed until it is released or has been held for MaxHold; it does not end
// with ctx. When somebody else holds the lock the error is [ErrHeld] and
// nothing has changed. After any other error the lock is given back if it may
// have been got. Where that fails too it ends by itself after TTL; if it may
// not even do that, because Redis has stopped redislock half way, the error
// says so.
func (l *Locker) Acquire(ctx context.Context, resource string) (*Lease, error) {
	if err := keyspace.CheckResource(resource); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResource, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("lock: acquire %q: %w", resource, err)
	}
	b := l.Bid(resource, true)
	lease, err := l.obtain(ctx, b, nil)
	if err == nil || errors.Is(err, ErrHeld) {
		return lease, err
	}
	err = fmt.Errorf("lock: acquire %q: %w", resource, err)
	failed := l.withdraw(ctx, b)
	var refusal redis.Error
	if failed != nil && errors.As(err, &refusal) {
		// redislock sets its key and the key's life in two steps. A user who may
		// do the first and not the second is left with a lock for ever.
		err = fmt.Errorf("%w; a lock without an end may be left at %q, for it could not be removed: %w", err, b.Key, failed)
	}
	return nil, err
}

// Bid is an attempt at the lock of a lane that a script of the caller's will
// decide. Its token is random, new and of fixed length, so that no bid can be
// taken for another.
type Bid struct {
	Lane  string
	Key   string // the lock's key
	Clock string // the key of the clock that gives fences
	Token string // what the lock's key must hold when the bid is won
	TTL   time.Duration

	keep  bool
	asked time.Time
}

// Bid prepares an attempt at the lock of lane, which must be a valid resource
// or a name that no resource can have. With keep a lease that is won is
// renewed until its release, otherwise it ends after TTL unless extended. The
// lease's life counts from this call.
func (l *Locker) Bid(lane string, keep bool) Bid {
	h := l.space.Of(lane)
	return Bid{
		Lane: lane, Key: h.Lock(lane), Clock: h.Clock, Token: newToken(), TTL: l.cfg.TTL,
		keep: keep, asked: time.Now(),
	}
}

// Grant makes a lease of a bid. It calls decide once, in the place where
// redislock runs its own obtain script; decide must set b.Key to b.Token for
// b.TTL, atomically and only if the key is free or already holds the token, and
// report the fence. When decide reports that the bid lost, Grant returns nil
// and no error.
func (l *Locker) Grant(ctx context.Context, b Bid, decide func(context.Context) (fence int64, won bool, err error)) (*Lease, error) {
	lease, err := l.obtain(ctx, b, decide)
	if errors.Is(err, ErrHeld) {
		return nil, nil
	}
	return lease, err
}

// Withdraw gives back the lock that a bid may have won without its bidder
// hearing of it. It does its best, even when ctx has ended, and harms nobody
// who got the lock since.
func (l *Locker) Withdraw(ctx context.Context, b Bid) { _ = l.withdraw(ctx, b) }

func (l *Locker) withdraw(ctx context.Context, b Bid) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	won := func(context.Context) (int64, bool, error) { return 0, true, nil }
	s := &scripter{rdb: l.rdb, bid: b, decide: won}
	h, err := redislock.New(s).Obtain(ctx, b.Key, b.TTL, &redislock.Options{Token: b.Token})
	if err != nil {
		return err
	}
	if err := h.Release(ctx); !errors.Is(err, redislock.ErrLockNotHeld) {
		return err
	}
	return nil
}

// withdrawal bounds how long a lock is given back for when the call it belongs
// to is over already, and is not to hang on top of that.
const withdrawal = 500 * time.Millisecond

// detached is a context for giving something back after ctx has ended.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), withdrawal)
}

func (l *Locker) obtain(ctx context.Context, b Bid, decide func(context.Context) (int64, bool, error)) (*Lease, error) {
	ls := &Lease{locker: l, base: ctx, script: scripter{rdb: l.rdb, bid: b, decide: decide}}
	// A lock that is got after its life is none. (redislock sets a timer for that
	// on a context without a deadline.)
	handle, err := redislock.New(&ls.script).Obtain(script.Until(ctx, b.asked.Add(b.TTL)), b.Key, b.TTL, &redislock.Options{Token: b.Token})
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, &HeldError{Resource: b.Lane, For: ls.script.heldFor}
	}
	if err != nil {
		return nil, err
	}
	ls.start(handle)
	return ls, nil
}
