package lock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

// grant wins b, as a script would that finds the lock free.
func grant(t *testing.T, s *redistest.Server, l *lock.Locker, b lock.Bid) *lock.Lease {
	t.Helper()
	c := s.Client(t)
	lease, err := l.Grant(t.Context(), b, func(ctx context.Context) (int64, bool, error) {
		won, err := c.SetNX(ctx, b.Key, b.Token, b.TTL).Result()
		return 1, won, err
	})
	if err != nil || lease == nil {
		t.Fatalf("%v, %v, want a lease", lease, err)
	}
	t.Cleanup(lease.End)
	return lease
}

func TestReleaseMayBeRepeated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		lease := mustAcquire(t, l, "r")
		for range 3 {
			mustRelease(t, lease)
		}
		next := mustAcquire(t, l, "r")
		mustRelease(t, lease)
		if v := holds(t, c, l, "r"); v != next.Token() {
			t.Errorf("the lock is %q, the holder's token %q", v, next.Token())
		}
		if err := lease.Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Extend after Release: %v, want ErrLost", err)
		}
		lease.End()
	})
}

func TestReleaseWhoseReplyIsLostHasReleased(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		warm(t, l)
		lease := mustAcquire(t, l, "r")
		p.DropReply(lease.Token(), 1)
		mustRelease(t, lease)
		if v := holds(t, s.Client(t), l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
		lease = mustAcquire(t, l, "r")
		p.DropReply(lease.Token(), 100)
		if err := lease.Release(t.Context()); err == nil {
			t.Error("no reply, and no error")
		}
		p.Heal()
		mustRelease(t, lease)
	})
}

func TestReleaseThatDidNotArriveMayBeRepeated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		warm(t, l)
		lease := mustAcquire(t, l, "r")
		p.RefuseRequest(lease.Token(), 100)
		if err := lease.Release(t.Context()); err == nil {
			t.Error("nothing was sent, and no error")
		}
		if lease.Context().Err() == nil {
			t.Error("the context of a released lease goes on")
		}
		p.Heal()
		if v := holds(t, s.Client(t), l, "r"); v != lease.Token() {
			t.Errorf("the lock is %q", v)
		}
		mustRelease(t, lease)
		if v := holds(t, s.Client(t), l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
	})
}

// `defer lease.Release(ctx)` left the lock standing for a TTL whenever ctx had
// been cancelled.
func TestReleaseDoesSoAfterItsContextHasEnded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		lease := mustAcquire(t, l, "r")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lease.Release(ctx); err != nil {
			t.Error(err)
		}
		if v := holds(t, c, l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
	})
}

func TestReleaseAfterExpiryDoesNotTouchTheNextHolder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		short := newLocker(t, c, lock.Config{TTL: lock.MinTTL, MaxHold: lock.MinTTL})
		lease := grant(t, s, short, short.Bid("r", false))
		redistest.Wait(t, "the lock has expired", func() bool { return holds(t, c, short, "r") == "" })
		lost(t, lease)
		l := newLocker(t, c, lock.Config{})
		next := mustAcquire(t, l, "r")
		if err := lease.Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		mustRelease(t, lease)
		if v := holds(t, c, l, "r"); v != next.Token() {
			t.Errorf("the next holder's lock is %q, want %q", v, next.Token())
		}
	})
}

func TestEndSaysNothingToRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		l := newLocker(t, p.Client(t), lock.Config{})
		lease := mustAcquire(t, l, "r")
		p.Reset()
		lease.End()
		if n := p.Requests(); n != 0 || lease.Context().Err() == nil {
			t.Errorf("%d requests, the context says %v", n, lease.Context().Err())
		}
		if v := holds(t, s.Client(t), l, "r"); v != lease.Token() {
			t.Errorf("the lock is %q", v)
		}
	})
}

func TestGrantMakesALeaseOfWhatWasDecided(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{Shards: 4})
		b := l.Bid("r", true)
		if b.Lane != "r" || b.Key != l.Key("r") || b.TTL != lock.DefaultTTL {
			t.Errorf("the bid is %+v", b)
		}
		calls := 0
		won := func(ctx context.Context) (int64, bool, error) {
			calls++
			return 42, true, c.Set(ctx, b.Key, b.Token, b.TTL).Err()
		}
		lease, err := l.Grant(t.Context(), b, won)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Fence() != 42 || lease.Token() != b.Token || lease.Resource() != "r" || calls != 1 {
			t.Errorf("fence %d, token %q, resource %q after %d calls", lease.Fence(), lease.Token(), lease.Resource(), calls)
		}
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := l.Acquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("%v, want ErrHeld", err)
		}
		mustRelease(t, lease)
		if v := holds(t, c, l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
	})
}

func TestGrantOfALostBidIsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), lock.Config{})
		why := errors.New("why")
		calls := 0
		lease, err := l.Grant(t.Context(), l.Bid("r", true), func(context.Context) (int64, bool, error) {
			calls++
			return 0, false, nil
		})
		if lease != nil || err != nil || calls != 1 {
			t.Errorf("lost: %v, %v after %d calls", lease, err, calls)
		}
		lease, err = l.Grant(t.Context(), l.Bid("r", true), func(context.Context) (int64, bool, error) {
			calls++
			return 0, true, why
		})
		if lease != nil || !errors.Is(err, why) || calls != 2 {
			t.Errorf("failed: %v, %v after %d calls", lease, err, calls)
		}
	})
}

func TestLaneOfAWriteThatStandsAloneHasNoResource(t *testing.T) {
	s := redistest.Mini(t)
	l := newLocker(t, s.Client(t), lock.Config{})
	if r := grant(t, s, l, l.Bid("\x00id", false)).Resource(); r != "" {
		t.Errorf("the resource is %q", r)
	}
}

func TestWithdrawGivesBackOnlyWhatTheBidWon(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		b := l.Bid("r", true)
		l.Withdraw(t.Context(), b) // nothing there
		c.Set(t.Context(), b.Key, b.Token, b.TTL)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.Withdraw(ctx, b)
		if v := holds(t, c, l, "r"); v != "" {
			t.Errorf("the lock is %q", v)
		}
		next := mustAcquire(t, l, "r")
		l.Withdraw(t.Context(), b)
		if v := holds(t, c, l, "r"); v != next.Token() {
			t.Errorf("the lock is %q, the holder's token %q", v, next.Token())
		}
	})
}
