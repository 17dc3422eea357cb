package lock_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

func TestFencesRiseWhateverBecomesOfTheKeys(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		ctx := t.Context()
		lockers := []*lock.Locker{newLocker(t, c, lock.Config{}), newLocker(t, s.Client(t), lock.Config{})}
		rapid.Check(t, func(rt *rapid.T) {
			last := map[string]int64{}
			for range rapid.IntRange(1, 12).Draw(rt, "turns") {
				switch rapid.IntRange(0, 4).Draw(rt, "loss") {
				case 0:
					c.Del(ctx, "{n:0}:clock")
				case 1:
					c.FlushAll(ctx)
				case 2:
					c.Set(ctx, "{n:0}:clock", rapid.StringMatching(`[0-9]{0,12}|[a-z -]{1,5}`).Draw(rt, "garbage"), 0)
				}
				r := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "resource")
				lease, err := rapid.SampledFrom(lockers).Draw(rt, "locker").Acquire(ctx, r)
				if err != nil {
					rt.Fatal(err)
				}
				if lease.Fence() <= last[r] {
					rt.Fatalf("%q: the fence %d after %d", r, lease.Fence(), last[r])
				}
				last[r] = lease.Fence()
				if rapid.Bool().Draw(rt, "by force") {
					lease.End()
					c.Del(ctx, lockers[0].Key(r))
				} else if err := lease.Release(ctx); err != nil {
					rt.Fatal(err)
				}
			}
		})
	})
}

func TestFencesRiseWhenTheServersClockStepsBack(t *testing.T) {
	s := redistest.Mini(t)
	l := newLocker(t, s.Client(t), lock.Config{})
	now, last := time.Date(2026, 10, 25, 3, 0, 0, 0, time.UTC), int64(0)
	for _, step := range []time.Duration{0, time.Second, -12 * time.Minute, time.Millisecond, 2 * time.Minute, -time.Hour, 0, 0} {
		now = now.Add(step)
		s.Mini().SetTime(now)
		lease := mustAcquire(t, l, "r")
		if lease.Fence() <= last {
			t.Errorf("after a step of %v the fence is %d, was %d", step, lease.Fence(), last)
		}
		last = lease.Fence()
		mustRelease(t, lease)
	}
}

func TestLiftedFenceIsGreaterAndSoAreAllThatFollow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), lock.Config{})
		last := int64(0)
		hour := time.Hour.Microseconds()
		for _, ahead := range []int64{hour, 1_000_000, 30 * 24 * hour} {
			lease := mustAcquire(t, l, "r")
			first := lease.Fence()
			if first <= last {
				t.Errorf("the fence %d after %d", first, last)
			}
			above := first + ahead
			if err := lease.Lift(t.Context(), above); err != nil {
				t.Fatal(err)
			}
			if last = lease.Fence(); last <= above || last <= first {
				t.Errorf("lifted above %d from %d, the fence is %d", above, first, last)
			}
			alive(t, lease)
			mustRelease(t, lease)
		}
	})
}

// A Redis that was cut off from its replicas still called a lock its holder's when
// another had long taken over. Lifted there, the holder wrote after its successors:
// by then the clock was past theirs.
func TestFenceThatTheClockHasPassedIsNotLiftedAbove(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		for _, behind := range []int64{0, 1, time.Hour.Microseconds()} {
			lease := mustAcquire(t, l, "r")
			clock, fence := c.Get(t.Context(), "{n:0}:clock").Val(), lease.Fence()
			if err := lease.Lift(t.Context(), fence-behind); !errors.Is(err, lock.ErrLost) {
				t.Errorf("above a fence %d us older: %v, want ErrLost", behind, err)
			}
			lost(t, lease)
			if now := c.Get(t.Context(), "{n:0}:clock").Val(); now != clock || lease.Fence() != fence {
				t.Errorf("the clock went from %s to %s, the fence from %d to %d", clock, now, fence, lease.Fence())
			}
			mustRelease(t, lease)
		}
	})
}

func TestOnlyTheHolderLifts(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		old := mustAcquire(t, l, "r")
		c.Del(t.Context(), l.Key("r"))
		holder := mustAcquire(t, l, "r")
		clock, before := c.Get(t.Context(), "{n:0}:clock").Val(), old.Fence()
		if err := old.Lift(t.Context(), holder.Fence()+1_000_000); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		lost(t, old)
		if now := c.Get(t.Context(), "{n:0}:clock").Val(); now != clock || old.Fence() != before {
			t.Errorf("the clock went from %s to %s, the fence from %d to %d", clock, now, before, old.Fence())
		}
		alive(t, holder)
	})
}

// A fence of 2^63-1, from a database somebody had repaired by hand, went into
// the clock. The next one was smaller: it was more than Redis's numbers hold.
func TestFenceThatNobodyGaveIsNotLiftedAbove(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		lease := mustAcquire(t, l, "r")
		clock := c.Get(t.Context(), "{n:0}:clock").Val()
		for _, above := range []int64{-1, math.MinInt64, 1<<52 + 1, 1 << 60, math.MaxInt64} {
			if err := lease.Lift(t.Context(), above); err == nil || errors.Is(err, lock.ErrLost) {
				t.Errorf("above %d: %v, want a refusal", above, err)
			}
		}
		if now := c.Get(t.Context(), "{n:0}:clock").Val(); now != clock || fmt.Sprint(lease.Fence()) != clock {
			t.Errorf("the clock went from %s to %s, the fence is %d", clock, now, lease.Fence())
		}
		alive(t, lease)
		// The greatest that is allowed leaves room for all that follow.
		last := int64(1 << 52)
		if err := lease.Lift(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if lease.Fence() <= last {
				t.Errorf("the fence %d after %d", lease.Fence(), last)
			}
			last = lease.Fence()
			mustRelease(t, lease)
			lease = mustAcquire(t, l, "r")
		}
	})
}
