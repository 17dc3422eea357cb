package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

// keeping is a leave that keeps the lock, with the fence.
func keeping(c *redis.Client, l *lock.Locker, ttl time.Duration, fence int64) func(context.Context) (int64, bool, error) {
	return func(ctx context.Context) (int64, bool, error) {
		kept, err := c.PExpire(ctx, l.Key("r"), ttl).Result()
		return fence, kept, err
	}
}

// deleting is a leave that gives the lock back.
func deleting(c *redis.Client, l *lock.Locker) func(context.Context) (int64, bool, error) {
	return func(ctx context.Context) (int64, bool, error) {
		return 0, false, c.Del(ctx, l.Key("r")).Err()
	}
}

func TestLeaveThatGivesTheLockBackEndsTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := s.Client(t)
		l := newLocker(t, p.Client(t), lock.Config{})
		lease := mustAcquire(t, l, "r")
		p.Reset()
		if err := lease.Leave(t.Context(), deleting(c, l)); err != nil {
			t.Fatal(err)
		}
		if n := p.Requests(); n != 0 {
			t.Errorf("Leave sent %d requests of its own", n)
		}
		if cause := context.Cause(lease.Context()); !errors.Is(cause, context.Canceled) || errors.Is(cause, lock.ErrLost) {
			t.Errorf("the context says %v", cause)
		}
		mustRelease(t, lease)
	})
}

func TestLeaveThatKeepsTheLockGoesOnWithANewFence(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		lease := mustAcquire(t, l, "r")
		token, fence := lease.Token(), lease.Fence()
		ctx := lease.Context()
		if err := lease.Leave(t.Context(), keeping(c, l, lock.DefaultTTL, fence+7)); err != nil {
			t.Fatal(err)
		}
		alive(t, lease)
		if lease.Fence() != fence+7 || lease.Token() != token || lease.Context() != ctx {
			t.Errorf("the fence is %d, the token %q; the context is new: %v", lease.Fence(), lease.Token(), lease.Context() != ctx)
		}
		// The lease's own release is redislock's again: a draft ran the last
		// leave once more, and kept the lock.
		mustRelease(t, lease)
		if v := holds(t, c, l, "r"); v != "" {
			t.Errorf("after its release the lock is %q", v)
		}
	})
}

func TestLeaveThatFailsChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		lease := mustAcquire(t, l, "r")
		fence, why, calls := lease.Fence(), errors.New("why"), 0
		err := lease.Leave(t.Context(), func(context.Context) (int64, bool, error) {
			calls++
			return fence + 7, true, why
		})
		if !errors.Is(err, why) || calls != 1 || lease.Fence() != fence {
			t.Errorf("%v after %d calls, the fence went from %d to %d", err, calls, fence, lease.Fence())
		}
		alive(t, lease)
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		mustRelease(t, lease)
		if v := holds(t, c, l, "r"); v != "" {
			t.Errorf("after its release the lock is %q", v)
		}
	})
}

func TestMaxHoldBeginsAnewWithEveryLeaveThatKeeps(t *testing.T) {
	cfg := lock.Config{TTL: time.Second, MaxHold: 3 * time.Second}
	bubble(t, cfg, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		c := s.Client(t)
		lease := mustAcquire(t, l, "r")
		for range 4 {
			pass(2900 * time.Millisecond)
			alive(t, lease)
			if err := lease.Leave(t.Context(), keeping(c, l, cfg.TTL, 0)); err != nil {
				t.Fatal(err)
			}
		}
		last := time.Now()
		<-lease.Context().Done()
		lost(t, lease)
		if d := time.Since(last); d != cfg.MaxHold {
			t.Errorf("after the last leave it was held for %v", d)
		}
	})
}

// A batch that had used up MaxHold, or whose renewals had failed for a moment,
// handed a context that had ended to the next one.
func TestLeaseThatWasKeptInTimeHasANewContext(t *testing.T) {
	cfg := lock.Config{TTL: time.Second, MaxHold: 3 * time.Second}
	bubble(t, cfg, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		c := s.Client(t)
		ctx := context.WithValue(t.Context(), ctxKey{}, "v")
		lease, err := l.Acquire(ctx, "r")
		if err != nil {
			t.Fatal(err)
		}
		old := lease.Context()
		pass(cfg.MaxHold)
		lost(t, lease)
		if err := lease.Leave(t.Context(), keeping(c, l, cfg.TTL, 0)); err != nil {
			t.Fatal(err)
		}
		alive(t, lease)
		if old.Err() == nil || lease.Context().Value(ctxKey{}) != "v" {
			t.Errorf("the old context says %v, the new one has %v", old.Err(), lease.Context().Value(ctxKey{}))
		}
		pass(2500 * time.Millisecond) // renewed again
		alive(t, lease)
		if d := life(t, c, l, "r"); d < 500*time.Millisecond {
			t.Errorf("the lock lives only %v", d)
		}
		mustRelease(t, lease)
	})
}

// A renewal that was asked for before a leave and arrives after it cut the life
// that the leave had given, while the lease counted on all of it.
func TestLateRenewalDoesNotShortenWhatALeaveKept(t *testing.T) {
	cfg := lock.Config{TTL: time.Second, MaxHold: 1500 * time.Millisecond}
	bubble(t, cfg, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		c := s.Client(t)
		b := l.Bid("r", false)
		lease := grant(t, s, l, b)
		if err := lease.Extend(t.Context()); err != nil { // the server knows the script
			t.Fatal(err)
		}
		pass(800 * time.Millisecond)
		if err := lease.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(600 * time.Millisecond) // 100 ms of MaxHold are left
		arrived, release := p.HoldRequest(b.Token)
		extended := make(chan error, 1)
		go func() { extended <- lease.Extend(t.Context()) }()
		<-arrived
		pass(90 * time.Millisecond)
		if err := lease.Leave(t.Context(), keeping(c, l, cfg.TTL, 0)); err != nil {
			t.Fatal(err)
		}
		release()
		if err := <-extended; err != nil {
			t.Error(err)
		}
		if d := life(t, c, l, "r"); d < cfg.TTL {
			t.Errorf("the lock lives only %v", d)
		}
		pass(850 * time.Millisecond) // 60 ms after what the renewal alone was good for
		alive(t, lease)
		if v := holds(t, c, l, "r"); v != b.Token {
			t.Errorf("the lease is alive and the lock is %q", v)
		}
	})
}

// A renewal that comes after the leave finds no lock. That is no loss.
func TestRenewalThatCrossesALeaveIsNoLoss(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		c := s.Client(t)
		lease := mustAcquire(t, l, "r")
		arrived, release := p.HoldRequest(lease.Token())
		<-arrived
		err := lease.Leave(t.Context(), func(ctx context.Context) (int64, bool, error) {
			defer pass(0) // the reply comes before this function's
			defer release()
			return 0, false, c.Del(ctx, l.Key("r")).Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(lease.Context()); errors.Is(cause, lock.ErrLost) {
			t.Errorf("the context says %v", cause)
		}
	})
}
