package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// obtaining marks the requests in which redislock's obtain script is sent: no
// other has the length of a token as an argument.
const obtaining = "$2\r\n22\r\n"

func newLocker(t *testing.T, c redis.UniversalClient, cfg lock.Config) *lock.Locker {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "n"
	}
	l, err := lock.New(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// mustAcquire acquires r and gives it back when the test ends.
func mustAcquire(t *testing.T, l *lock.Locker, r string) *lock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.End)
	return lease
}

// warm makes the server know all scripts and leaves nothing else behind.
func warm(t *testing.T, l *lock.Locker) {
	t.Helper()
	lease := mustAcquire(t, l, "warm")
	if err := lease.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRelease(t, lease)
}

func mustRelease(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// holds is what l's key of r holds, "" if nothing.
func holds(t *testing.T, c *redis.Client, l *lock.Locker, r string) string {
	t.Helper()
	v, err := c.Get(t.Context(), l.Key(r)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

// life is how long the lock of r still lives.
func life(t *testing.T, c *redis.Client, l *lock.Locker, r string) time.Duration {
	t.Helper()
	d, err := c.PTTL(t.Context(), l.Key(r)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// held fails unless err says that somebody else holds the lock of r, for at
// least more than min.
func held(t *testing.T, err error, r string, min, most time.Duration) {
	t.Helper()
	var h *lock.HeldError
	if !errors.Is(err, lock.ErrHeld) || !errors.As(err, &h) {
		t.Errorf("%v, want ErrHeld", err)
		return
	}
	if h.Resource != r || h.For < min || h.For > most {
		t.Errorf("%+v, want %q for %v to %v", h, r, min, most)
	}
}

// lost fails unless lease's context has ended with ErrLost.
func lost(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("the lease's context says %v, want ErrLost", cause)
	}
}

// alive fails if lease's context has ended.
func alive(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the lease's context has ended: %v", context.Cause(lease.Context()))
	}
}

// bubble runs f in a synctest bubble, with a server there, a proxy before it,
// and a locker through that proxy.
func bubble(t *testing.T, cfg lock.Config, f func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.MiniInBubble(t)
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), cfg)
		warm(t, l)
		f(t, s, p, l)
	})
}

// pass lets d pass in a bubble, and whatever happens at its end happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
