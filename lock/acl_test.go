package lock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

// limited is a client whose user has these rights only.
func limited(t *testing.T, s *redistest.Server, rules ...any) *redis.Client {
	t.Helper()
	set := append([]any{"acl", "setuser", "u", "reset", "on", ">u", "~{n:0}:*"}, rules...)
	if err := s.Client(t).Do(t.Context(), set...).Err(); err != nil {
		t.Fatal(err)
	}
	return s.ClientWith(t, func(o *redis.Options) { o.Username, o.Password = "u", "u" })
}

// These are all the rights that a user of this package needs.
var rights = []any{
	"-@all", "+ping", "+hello", "+evalsha", "+eval", "+get", "+set", "+time",
	"+msetnx", "+mset", "+mget", "+getrange", "+pexpire", "+pttl", "+del",
}

func TestTheseRightsAreEnough(t *testing.T) {
	s := redistest.Real(t)
	l := newLocker(t, limited(t, s, rights...), lock.Config{})
	for range 2 {
		lease := mustAcquire(t, l, "r")
		_, err := l.Acquire(t.Context(), "r")
		held(t, err, "r", time.Second, lock.DefaultTTL)
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		if err := lease.Lift(t.Context(), lease.Fence()+time.Minute.Microseconds()); err != nil {
			t.Error(err)
		}
		mustRelease(t, lease)
	}
}

// redislock sets its key and then its life. A user who may not do the second
// left a lock for ever, which nobody knew of.
func TestMissingRightLeavesNoLockBehind(t *testing.T) {
	for _, right := range []string{"pexpire", "msetnx", "set", "time", "get", "pttl"} {
		t.Run(right, func(t *testing.T) {
			s := redistest.Real(t)
			l := newLocker(t, limited(t, s, append(rights, "-"+right)...), lock.Config{})
			lease, err := l.Acquire(t.Context(), "r")
			if right == "pttl" {
				if err != nil {
					t.Fatalf("%v: only the losers need it", err)
				}
				mustRelease(t, lease)
			} else if lease != nil || err == nil || errors.Is(err, lock.ErrHeld) {
				t.Errorf("%v, %v, want a failure", lease, err)
			}
			if v := holds(t, s.Client(t), l, "r"); v != "" {
				t.Errorf("the lock is %q", v)
			}
		})
	}
}

func TestLockThatCannotEvenBeRemovedIsReported(t *testing.T) {
	s := redistest.Real(t)
	for _, missing := range []string{"-del", "-mget"} {
		l := newLocker(t, limited(t, s, append(rights, "-pexpire", missing)...), lock.Config{})
		_, err := l.Acquire(t.Context(), "r"+missing)
		if err == nil || !strings.Contains(err.Error(), "without an end") || !strings.Contains(err.Error(), l.Key("r"+missing)) {
			t.Errorf("%v does not tell of the lock that is left at %q", err, l.Key("r"+missing))
		}
		_, err = newLocker(t, s.Client(t), lock.Config{}).Acquire(t.Context(), "r"+missing)
		held(t, err, "r"+missing, -time.Hour, -1)
	}
}
