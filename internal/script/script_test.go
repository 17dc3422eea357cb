package script_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/internal/script"
)

func TestKeysArgumentsAndReplyAreExact(t *testing.T) {
	echo := script.New(`return `, `{ KEYS[1], KEYS[2], ARGV[1], ARGV[2] }`)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		keys := []string{"{n:0}:\xff\x00", "{n:0}:}{"}
		r, err := script.Run(t.Context(), s.Client(t), echo, keys, []byte("\r\n\x00\xfe"), int64(1)<<53)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := r.Value.([]any)
		want := []any{keys[0], keys[1], "\r\n\x00\xfe", "9007199254740992"}
		if !slices.Equal(got, want) || r.Repeated || r.Acked != 0 {
			t.Errorf("replied %q, want %q; repeated %v, acked %d", got, want, r.Repeated, r.Acked)
		}
	})
}

func TestReplyOfNothingIsNoError(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, err := script.Run(t.Context(), s.Client(t), script.New(`return false`), []string{key})
		if err != nil || r.Value != nil {
			t.Errorf("replied %v, %v", r.Value, err)
		}
	})
}

func TestScriptTheServerHasForgottenRunsAllTheSame(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		for want := range int64(3) {
			r, err := script.NewSender(c).Run(t.Context(), count, script.Wait{}, []string{key})
			if err != nil || r.Value != want+1 || r.Repeated {
				t.Fatalf("replied %+v, %v, want %d", r, err, want+1)
			}
			s.FlushScripts(t)
		}
	})
}

func TestScriptsForgottenAllTheTimeAreCarriedOutOnceEach(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		var running sync.WaitGroup
		const callers, calls = 4, 100
		for range callers {
			running.Go(func() {
				for range calls {
					if r, err := script.Run(t.Context(), c, count, []string{key}); err != nil || r.Repeated {
						t.Errorf("replied %+v, %v", r, err)
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { running.Wait(); close(done) }()
		for busy := true; busy; {
			s.FlushScripts(t)
			select {
			case <-done:
				busy = false
			default:
			}
		}
		if n := value(t, c); n != callers*calls {
			t.Errorf("%d scripts were carried out %d times", callers*calls, n)
		}
	})
}

func TestLostReplyIsAskedForAgainOnceAndSaid(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, first)
		for _, marker := range []string{"evalsha", "eval\r\n"} { // as hash, and as text
			if marker == "eval\r\n" {
				s.FlushScripts(t)
			}
			c.Del(t.Context(), key)
			p.Reset()
			p.DropReply(marker, 1)
			r, err := script.Run(t.Context(), c, first, []string{key})
			if err != nil {
				t.Fatal(err)
			}
			if r.Value != int64(0) || !r.Repeated {
				t.Errorf("%q: replied %v, repeated %v; want the second run's 0, repeated", marker, r.Value, r.Repeated)
			}
			if n := value(t, c); n != 1 {
				t.Errorf("%q: the effect happened %d times", marker, n)
			}
		}
	})
}

// go-redis was left to replay by itself in an early draft: it sent a script up
// to four times for each of our own four attempts.
func TestScriptWhoseRepliesAreAllLostIsSentFourTimesAndUnclear(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, w := range []script.Wait{{}, {Replicas: 1, Timeout: time.Millisecond}} {
			p := redistest.NewProxy(t, s)
			c := p.ClientWith(t, one)
			known(t, c, count)
			before := value(t, c)
			p.DropReply(count.Hash(), 100)
			_, err := script.NewSender(c).Run(t.Context(), count, w, []string{key})
			if !errors.Is(err, script.ErrUnclear) {
				t.Errorf("with %+v: %v, want ErrUnclear", w, err)
			}
			p.Heal()
			if n := value(t, c) - before; n != 4 {
				t.Errorf("with %+v: sent %d times, want 4", w, n)
			}
		}
	})
}

func TestRequestThatNeverArrivesIsSentAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, count)
		p.RefuseRequest(count.Hash(), 2)
		r, err := script.Run(t.Context(), c, count, []string{key})
		// The connection broke after the request was written: whether it
		// arrived cannot be known here, so it is said.
		if err != nil || r.Value != int64(1) || !r.Repeated {
			t.Errorf("replied %+v, %v", r, err)
		}
	})
}

func TestCancelledBeforeItIsSentNothingIsSent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, count)
		p.Reset()
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		_, err := script.Run(ctx, c, count, []string{key})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, script.ErrUnclear) {
			t.Errorf("%v, want Canceled and its cause, and nothing unclear", err)
		}
		if n := p.Requests(); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestBlackHoleEndsWithItsContextAndIsUnclear(t *testing.T) {
	for _, w := range []script.Wait{{}, {Replicas: 1, Timeout: 10 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			s := redistest.MiniInBubble(t)
			p := redistest.NewProxy(t, s)
			c := p.Client(t)
			known(t, c, count)
			p.HoldReply(count.Hash())
			p.HoldReply(count.Hash())
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // go-redis gives up a read after 3
			defer cancel()
			_, err := script.NewSender(c).Run(ctx, count, w, []string{key})
			if !errors.Is(err, script.ErrUnclear) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want ErrUnclear and DeadlineExceeded", err)
			}
			if took := time.Since(began); took != 4*time.Second {
				t.Errorf("it took %v, its context ended after 4s", took)
			}
			p.Heal()
		})
	}
}

func TestCancelledBetweenAttemptsIsUnclearIfOneWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.MiniInBubble(t)
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, count)
		p.DropReply(count.Hash(), 1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond) // the pause is 8 ms
		defer cancel()
		_, err := script.Run(ctx, c, count, []string{key})
		if !errors.Is(err, script.ErrUnclear) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want ErrUnclear and DeadlineExceeded", err)
		}
		if n := value(t, c); n != 1 {
			t.Errorf("carried out %d times, want 1", n)
		}
	})
}

func TestBackoffOutlivesARestartInPlace(t *testing.T) {
	want := []time.Duration{8, 32, 128, 128}
	for i, w := range want {
		if got := script.Backoff(i + 1); got != w*time.Millisecond {
			t.Errorf("after attempt %d: %v, want %v", i+1, got, w*time.Millisecond)
		}
	}
}

func TestServerRestartedMeanwhileIsNotNoticed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.ClientWith(t, func(o *redis.Options) { one(o); o.DialerRetries = 1 })
		known(t, c, count)
		s.Kill(t)
		s.Restart(t)
		if _, err := script.Run(t.Context(), c, count, []string{key}); err != nil {
			t.Error(err)
		}
	})
}
