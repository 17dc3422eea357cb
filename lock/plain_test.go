package lock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

func TestPlainRedislockIsExcludedAndExcludesUs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{Shards: 3})
		plain := redislock.New(c)
		opts := []*redislock.Options{nil, {Metadata: "whose"}, {Token: "worker-12"}}
		for _, opt := range opts {
			ours := mustAcquire(t, l, "r")
			if _, err := plain.Obtain(t.Context(), l.Key("r"), time.Minute, opt); !errors.Is(err, redislock.ErrNotObtained) {
				t.Errorf("plain redislock beside ours: %v", err)
			}
			mustRelease(t, ours)
			theirs, err := plain.Obtain(t.Context(), l.Key("r"), time.Minute, opt)
			if err != nil {
				t.Fatal(err)
			}
			_, err = l.Acquire(t.Context(), "r")
			held(t, err, "r", 50*time.Second, time.Minute)
			// What we took and lost is not theirs to lose.
			mustRelease(t, ours)
			if ttl, err := theirs.TTL(t.Context()); err != nil || ttl < 50*time.Second {
				t.Errorf("their lock lives %v, %v", ttl, err)
			}
			if err := theirs.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPlainRedislockRecognisesOurLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		lease := mustAcquire(t, l, "r")
		// The same token obtains again: the value is in redislock's format.
		theirs, err := redislock.Obtain(t.Context(), c, l.Key("r"), time.Minute, &redislock.Options{Token: lease.Token()})
		if err != nil {
			t.Fatal(err)
		}
		if err := theirs.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := lease.Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
	})
}

// redislock compares a token as the beginning of the lock's value: "worker-1"
// takes the lock of "worker-12".
func TestNoTokenIsTheBeginningOfAnother(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		l := newLocker(t, c, lock.Config{})
		seen := map[string]bool{}
		for range 2000 {
			token := l.Bid("r", false).Token
			if len(token) != 22 || seen[token] {
				t.Fatalf("the token %q, want 22 new characters", token)
			}
			seen[token] = true
		}
		// Where the value does go on behind a token of ours, it is not ours.
		b := l.Bid("r", false)
		c.Set(t.Context(), b.Key, b.Token+"2", time.Minute)
		l.Withdraw(t.Context(), b)
		if v := holds(t, c, l, "r"); v != b.Token+"2" {
			t.Errorf("the lock is %q after the withdrawal of %q", v, b.Token)
		}
	})
}

// recorder notes with how many arguments redislock calls its scripts.
type recorder struct {
	redis.Scripter
	counts []int
}

func (r *recorder) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	r.counts = append(r.counts, len(args))
	return r.Scripter.EvalSha(ctx, sha, keys, args...)
}

// Our scripts take the place of redislock's by the number of arguments.
func TestRedislockSendsTheArgumentsWeTellItsScriptsApartBy(t *testing.T) {
	r := &recorder{Scripter: redistest.Mini(t).Client(t)}
	theirs, err := redislock.New(r).Obtain(t.Context(), "k", time.Minute, &redislock.Options{Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Error(err)
	}
	if err := theirs.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []int{3, 2, 1}; !slices.Equal(r.counts, want) {
		t.Errorf("obtain, refresh and release have %v arguments, want %v", r.counts, want)
	}
}
