package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

func TestLockIsTakenInOneRoundTripAndGivenBackInAnother(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		warm(t, l)
		p.Reset()
		lease := mustAcquire(t, l, "r")
		if n := p.RoundTrips(); n != 1 {
			t.Errorf("Acquire took %d round trips", n)
		}
		c := s.Client(t)
		if lease.Resource() != "r" || holds(t, c, l, "r") != lease.Token() {
			t.Errorf("a lease of %q with %q; the lock is %q", lease.Resource(), lease.Token(), holds(t, c, l, "r"))
		}
		if d := life(t, c, l, "r"); d <= 9*time.Second || d > lock.DefaultTTL {
			t.Errorf("the lock lives %v", d)
		}
		mustRelease(t, lease)
		if n := p.RoundTrips(); n != 2 {
			t.Errorf("with Release it took %d round trips", n)
		}
		if v := holds(t, c, l, "r"); v != "" {
			t.Errorf("after its release the lock is %q", v)
		}
		if left, _ := redistest.Locks(t.Context(), c, "n"); len(left) != 0 {
			t.Errorf("locks left: %q", left)
		}
		redistest.Audit(t, c, "n")
	})
}

func TestAcquireNeverWaitsAndChangesNothingWhenTheLockIsHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		lease := mustAcquire(t, l, "r")
		c := s.Client(t)
		clock := c.Get(t.Context(), "{n:0}:clock").Val()
		before := life(t, c, l, "r")
		p.Reset()
		_, err := l.Acquire(t.Context(), "r")
		held(t, err, "r", 9*time.Second, lock.DefaultTTL)
		if n := p.RoundTrips(); n != 1 {
			t.Errorf("it took %d round trips", n)
		}
		if v := holds(t, c, l, "r"); v != lease.Token() {
			t.Errorf("the lock is %q, was %q", v, lease.Token())
		}
		if after := life(t, c, l, "r"); after > before {
			t.Errorf("the lock's life went from %v to %v", before, after)
		}
		if now := c.Get(t.Context(), "{n:0}:clock").Val(); now != clock {
			t.Errorf("the clock went from %s to %s", clock, now)
		}
	})
}

func TestLockWithoutAnEndIsReported(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		c.Set(t.Context(), l.Key("r"), "foreign", 0)
		_, err := l.Acquire(t.Context(), "r")
		held(t, err, "r", -time.Hour, -1)
		if err == nil || !strings.Contains(err.Error(), "without an end") {
			t.Errorf("%v does not say that the lock has no end", err)
		}
		if v := holds(t, c, l, "r"); v != "foreign" {
			t.Errorf("the foreign lock is %q now", v)
		}
	})
}

func TestOneHoldsAtATime(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), lock.Config{Shards: 3})
		var inside, turns, fence atomic.Int64
		var running sync.WaitGroup
		for range 6 {
			running.Go(func() {
				for done := 0; done < 10; {
					lease, err := l.Acquire(t.Context(), "r")
					if errors.Is(err, lock.ErrHeld) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two hold the lock")
					}
					if last := fence.Swap(lease.Fence()); lease.Fence() <= last {
						t.Errorf("the fence %d after %d", lease.Fence(), last)
					}
					done++
					turns.Add(1)
					inside.Add(-1)
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		running.Wait()
		if turns.Load() != 60 {
			t.Errorf("%d turns", turns.Load())
		}
	})
}

func TestResourcesDoNotDisturbEachOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		for _, shards := range []int{1, 5} {
			l := newLocker(t, c, lock.Config{Shards: shards, Name: strings.Repeat("n", shards)})
			names := []string{"a", "a ", "A", "{a}", "}", "{", "{other:0}:lock:a", "lock:a", "日本語", strings.Repeat("x", 1024)}
			for _, r := range names {
				if lease := mustAcquire(t, l, r); lease.Resource() != r {
					t.Errorf("the lease of %q is of %q", r, lease.Resource())
				}
			}
			if n := int(c.Exists(t.Context(), keys(l, names)...).Val()); n != len(names) {
				t.Errorf("%d locks of %d", n, len(names))
			}
		}
		other := newLocker(t, c, lock.Config{Name: "other"})
		mustAcquire(t, other, "a") // held by the first Name
	})
}

func keys(l *lock.Locker, resources []string) []string {
	var out []string
	for _, r := range resources {
		out = append(out, l.Key(r))
	}
	return out
}

func TestBadResourcesAreRefusedAndNothingIsSent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		for _, r := range []string{"", "\x00", "a\x00b", "\xff", "a\xc3", strings.Repeat("x", 1025)} {
			lease, err := l.Acquire(t.Context(), r)
			if lease != nil || !errors.Is(err, lock.ErrResource) || errors.Is(err, lock.ErrHeld) {
				t.Errorf("%q: %v, %v, want ErrResource", r, lease, err)
			}
		}
		if n := p.Requests(); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestKeyOfAnotherTypeIsAnErrorAndLeftAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		c.HSet(t.Context(), l.Key("r"), "f", "v")
		_, err := l.Acquire(t.Context(), "r")
		if err == nil || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("%v, want a WRONGTYPE", err)
		}
		if err != nil && strings.Contains(err.Error(), "without an end") {
			t.Errorf("%v speaks of a lock that is none", err)
		}
		if v := c.HGet(t.Context(), l.Key("r"), "f").Val(); v != "v" {
			t.Errorf("the key holds %q", v)
		}
	})
}

func TestCancelledBeforeNothingIsSent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		warm(t, l)
		p.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Acquire(ctx, "r"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		if n := p.Requests(); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestReplyLostOnceCostsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		warm(t, l)
		p.DropReply(obtaining, 1)
		lease := mustAcquire(t, l, "r")
		if v := holds(t, s.Client(t), l, "r"); v != lease.Token() {
			t.Errorf("the lock is %q, the lease's token %q", v, lease.Token())
		}
	})
}

// An early draft left the lock that nobody had heard of for a whole TTL.
func TestAcquireThatFailsLeavesNoLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		warm(t, l)
		p.Record(obtaining)
		p.DropReply(obtaining, 100)
		_, err := l.Acquire(t.Context(), "r")
		if err == nil || errors.Is(err, lock.ErrHeld) {
			t.Errorf("%v, want a failure", err)
		}
		if len(p.Captured()) == 0 {
			t.Error("the lock was never asked for")
		}
		if v := holds(t, s.Client(t), l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
	})
}

func TestAcquireCancelledWhileItWaitsForTheReplyLeavesNoLock(t *testing.T) {
	bubble(t, lock.Config{}, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		p.HoldReply(obtaining)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := l.Acquire(ctx, "r")
		if !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			t.Errorf("%v before its context ended", err)
		}
		if err == nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("%v after %v, want a failure after 100ms", err, time.Since(began))
		}
		if v := holds(t, s.Client(t), l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
		p.Heal()
	})
}

func TestAcquireOfAServerThatIsGoneFails(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), lock.Config{})
		s.Kill(t)
		lease, err := l.Acquire(t.Context(), "r")
		if lease != nil || err == nil || errors.Is(err, lock.ErrHeld) {
			t.Errorf("%v, %v, want a failure", lease, err)
		}
		s.Restart(t)
		mustAcquire(t, l, "r")
	})
}

func TestForgottenScriptsAreNotNoticed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		for range 2 {
			lease := mustAcquire(t, l, "r")
			s.FlushScripts(t)
			if err := lease.Extend(t.Context()); err != nil {
				t.Error(err)
			}
			s.FlushScripts(t)
			if err := lease.Lift(t.Context(), lease.Fence()+time.Minute.Microseconds()); err != nil {
				t.Error(err)
			}
			s.FlushScripts(t)
			if _, err := l.Acquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("%v, want ErrHeld", err)
			}
			s.FlushScripts(t)
			mustRelease(t, lease)
			if v := holds(t, c, l, "r"); v != "" {
				t.Errorf("the lock is %q", v)
			}
		}
	})
}

// refusing is a hook that lets no pipeline through, as a circuit breaker does.
type refusing struct{}

var errOpen = errors.New("circuit open")

func (refusing) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return errOpen }
}

// What a hook refused looked like a lock that somebody else held.
func TestWhatAHookRefusesIsNotHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		c.AddHook(refusing{})
		if _, err := l.Acquire(t.Context(), "r"); !errors.Is(err, errOpen) || errors.Is(err, lock.ErrHeld) {
			t.Errorf("%v, want the hook's error", err)
		}
	})
}
