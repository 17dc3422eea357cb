package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

type ctxKey struct{}

var short = lock.Config{TTL: time.Second, MaxHold: time.Hour}

func TestLockIsRenewedWhileItIsHeld(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		c := s.Client(t)
		lease := mustAcquire(t, l, "r")
		p.Reset()
		for range 200 {
			pass(100 * time.Millisecond)
			alive(t, lease)
			if d := life(t, c, l, "r"); d < 600*time.Millisecond {
				t.Fatalf("the lock lives only %v", d)
			}
		}
		if n := p.Requests(); n < 59 || n > 61 {
			t.Errorf("%d renewals in 20 s, want one every third of a second", n)
		}
		mustRelease(t, lease)
		p.Reset()
		pass(time.Minute)
		if n := p.Requests(); n != 0 {
			t.Errorf("%d requests after the release", n)
		}
	})
}

func TestContextHasTheValuesButNotTheEndOfTheCallers(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "v"), 100*time.Millisecond)
		defer cancel()
		lease, err := l.Acquire(ctx, "r")
		if err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		alive(t, lease)
		if v := lease.Context().Value(ctxKey{}); v != "v" {
			t.Errorf("the value is %v", v)
		}
		if d, ok := lease.Context().Deadline(); ok {
			t.Errorf("it ends at %v", d)
		}
		mustRelease(t, lease)
		if cause := context.Cause(lease.Context()); !errors.Is(cause, context.Canceled) || errors.Is(cause, lock.ErrLost) {
			t.Errorf("after the release the cause is %v", cause)
		}
	})
}

// race waits for the end of lease and for the first moment at which rival gets
// the lock, and returns how long after now each was.
func race(t *testing.T, lease *lock.Lease, rival *lock.Locker, r string) (ended, taken time.Duration) {
	t.Helper()
	began := time.Now()
	stop := context.AfterFunc(lease.Context(), func() { ended = time.Since(began) })
	defer stop()
	for {
		other, err := rival.Acquire(t.Context(), r)
		if err == nil {
			taken = time.Since(began)
			pass(0)
			mustRelease(t, other)
			return ended, taken
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the rival never got the lock: %v", err)
		}
		pass(5 * time.Millisecond)
	}
}

// The life asked for was cut short towards the end of MaxHold, and with it the
// time between the word of the loss and the loss: in the end half a millisecond.
func TestHeldForMaxHoldAndNoLonger(t *testing.T) {
	for _, cfg := range []lock.Config{
		{TTL: time.Second, MaxHold: time.Second}, {TTL: time.Second, MaxHold: 1100 * time.Millisecond},
		{TTL: time.Second, MaxHold: 3 * time.Second}, {TTL: time.Second, MaxHold: 3331 * time.Millisecond},
	} {
		bubble(t, cfg, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
			ttl, most := cfg.TTL, cfg.MaxHold
			lease := mustAcquire(t, l, "r")
			ended, taken := race(t, lease, newLocker(t, s.Client(t), cfg), "r")
			lost(t, lease)
			if ended != most {
				t.Errorf("%+v: it was held for %v", cfg, ended)
			}
			if taken < ended+ttl/10 || taken > most+ttl {
				t.Errorf("%+v: it ended after %v and was another's after %v", cfg, ended, taken)
			}
			if err := lease.Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("%+v: Extend after MaxHold: %v", cfg, err)
			}
		})
	}
}

func TestLossIsHeardOfBeforeAnotherCanGetTheLock(t *testing.T) {
	faults := map[string]func(t *testing.T, s *redistest.Server, p *redistest.Proxy, token string){
		"renewals refused": func(_ *testing.T, _ *redistest.Server, p *redistest.Proxy, token string) {
			p.RefuseRequest(token, 1000)
		},
		"replies to renewals lost": func(_ *testing.T, _ *redistest.Server, p *redistest.Proxy, token string) {
			p.DropReply(token, 1000)
		},
		"black hole": func(_ *testing.T, _ *redistest.Server, p *redistest.Proxy, token string) {
			for range 100 {
				p.HoldRequest(token)
			}
		},
		"no Redis": func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, _ string) {
			s.Kill(t)
			time.AfterFunc(5*time.Second, func() { s.Restart(t) })
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
				lease := mustAcquire(t, l, "r")
				pass(5*time.Second + 400*time.Millisecond)
				alive(t, lease)
				fault(t, s, p, lease.Token())
				ended, taken := race(t, lease, newLocker(t, s.Client(t), lock.Config{}), "r")
				lost(t, lease)
				if ended == 0 || taken < ended+50*time.Millisecond {
					t.Errorf("it ended after %v, and was another's after %v", ended, taken)
				}
				if ended < 500*time.Millisecond || ended > 900*time.Millisecond {
					t.Errorf("it ended %v after the fault, its last renewal was good for longer or less", ended)
				}
				p.Heal()
				pass(2 * time.Second) // go-redis looks every second whether it can dial again
			})
		})
	}
}

func TestLockFreedByForceIsHeardOfAtTheNextRenewal(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		c := s.Client(t)
		lease := mustAcquire(t, l, "r")
		pass(1500 * time.Millisecond)
		c.Del(t.Context(), l.Key("r"))
		next := mustAcquire(t, newLocker(t, c, lock.Config{}), "r")
		pass(short.TTL / 3)
		lost(t, lease)
		mustRelease(t, lease)
		if v := holds(t, c, l, "r"); v != next.Token() {
			t.Errorf("the next holder's lock is %q, want %q", v, next.Token())
		}
		alive(t, next)
	})
}

func TestTwoRenewalsMayFail(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		lease := mustAcquire(t, l, "r")
		for range 5 {
			p.RefuseRequest(lease.Token(), 1)
			p.DropReply(lease.Token(), 1)
			pass(1200 * time.Millisecond)
			alive(t, lease)
			p.Heal()
			pass(time.Second)
		}
	})
}

// A renewal used to wait for its reply until the lock was lost.
func TestRenewalThatHangsLeavesTimeForAnother(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		lease := mustAcquire(t, l, "r")
		for range 3 {
			p.HoldRequest(lease.Token())
			pass(5 * time.Second)
			alive(t, lease)
		}
		p.Heal()
	})
}

// A lock's life counts from before it was asked for: Redis may have begun to
// count it then.
func TestSlowAnswersDoNotProlongALease(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		began := time.Now()
		release := p.HoldReply(obtaining)
		time.AfterFunc(250*time.Millisecond, release)
		lease := mustAcquire(t, l, "r")
		p.RefuseRequest(lease.Token(), 1000)
		<-lease.Context().Done()
		if d := time.Since(began); d != 900*time.Millisecond {
			t.Errorf("obtained slowly: the lease ended %v after it was asked for", d)
		}
		p.Heal()
		s.Client(t).Del(t.Context(), l.Key("r"))

		lease = grant(t, s, l, l.Bid("r", false))
		pass(100 * time.Millisecond)
		asked := time.Now()
		release = p.HoldReply(lease.Token())
		time.AfterFunc(300*time.Millisecond, release)
		if err := lease.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-lease.Context().Done()
		if d := time.Since(asked); d != 900*time.Millisecond {
			t.Errorf("extended slowly: the lease ended %v after that was asked for", d)
		}
		p.Heal()
	})
}

func TestAnswerThatComesAfterTheLockHasEndedGivesALeaseThatIsLost(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		b := l.Bid("r", true)
		lease, err := l.Grant(t.Context(), b, func(context.Context) (int64, bool, error) {
			pass(901 * time.Millisecond)
			return 1, true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		lost(t, lease) // at once: no timer has to fire first
		mustRelease(t, lease)
	})
}

func TestLeaseThatIsNotKeptEndsUnlessItIsExtended(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		began := time.Now()
		lease := grant(t, s, l, l.Bid("r", false))
		for range 5 {
			pass(800 * time.Millisecond)
			if err := lease.Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d := life(t, s.Client(t), l, "r"); d != time.Second {
				t.Errorf("the lock lives %v after it was extended", d)
			}
		}
		<-lease.Context().Done()
		lost(t, lease)
		if d := time.Since(began); d != 4900*time.Millisecond {
			t.Errorf("it ended after %v, want 4.9s", d)
		}
		if err := lease.Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		mustRelease(t, lease)
	})
}

func TestExtendThatFailsLosesNothing(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		lease := grant(t, s, l, l.Bid("r", false))
		p.RefuseRequest(lease.Token(), 1)
		if err := lease.Extend(t.Context()); err == nil || errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want a failure that is no loss", err)
		}
		alive(t, lease)
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestWithdrawDoesNotHang(t *testing.T) {
	bubble(t, short, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, l *lock.Locker) {
		b := l.Bid("r", true)
		p.HoldRequest(b.Token)
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.Withdraw(ctx, b)
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("it took %v, want half a second", d)
		}
		p.Heal()
	})
}
