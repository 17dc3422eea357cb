package script_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/internal/script"
)

// wantClear fails unless err says that nothing was carried out.
func wantClear(t *testing.T, err error) {
	t.Helper()
	if err == nil || errors.Is(err, script.ErrUnclear) {
		t.Errorf("%v, want an error that leaves nothing unclear", err)
	}
}

// wantUnclear fails unless err says that the script may have been carried out.
func wantUnclear(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, script.ErrUnclear) {
		t.Errorf("%v, want ErrUnclear", err)
	}
}

func run(t *testing.T, c redis.UniversalClient) error {
	t.Helper()
	_, err := script.Run(t.Context(), c, count, []string{key})
	return err
}

func TestServerDownFromTheBeginningIsClear(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		direct, through := s.Client(t), p.Client(t)
		s.Kill(t)
		wantClear(t, run(t, direct))
		// The proxy accepts a connection and cuts it, as a load balancer does
		// that has nobody behind it. This EOF was taken for a lost reply.
		wantClear(t, run(t, through))
		_, err := script.NewSender(through).Run(t.Context(), count, script.Wait{Replicas: 1}, []string{key})
		wantClear(t, err)
	})
}

func TestReplyLostAndThenTheServerGoneIsUnclear(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		var gone atomic.Bool
		c := p.ClientWith(t, func(o *redis.Options) {
			one(o)
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if gone.Load() {
					return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
		})
		known(t, c, count)
		gone.Store(true)
		p.DropReply(count.Hash(), 1)
		err := run(t, c)
		wantUnclear(t, err)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v does not say how the last attempt ended", err)
		}
		if n := value(t, s.Client(t)); n != 1 {
			t.Errorf("carried out %d times, want 1", n)
		}
	})
}

func TestReplyLostAndThenRefusedIsUnclear(t *testing.T) {
	refuses := script.New(`if redis.call('INCR', KEYS[1]) > 1 then return redis.error_reply('ERR once is enough') end return 1`)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, refuses)
		p.DropReply(refuses.Hash(), 1)
		_, err := script.Run(t.Context(), c, refuses, []string{key})
		wantUnclear(t, err)
	})
}

func TestRefusalIsClearAndNotRepeated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, count)
		c.LPush(t.Context(), key, "a list")
		p.Reset()
		wantClear(t, run(t, c))
		if n := p.RoundTrips(); n != 1 {
			t.Errorf("a wrong type was tried %d times", n)
		}
	})
}

// config sets one of a redis-server's settings.
func config(t *testing.T, s *redistest.Server, name, value string) {
	t.Helper()
	if err := s.Client(t).ConfigSet(t.Context(), name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestFullMemoryIsClear(t *testing.T) {
	s := redistest.Real(t)
	c := s.Client(t)
	known(t, c, count)
	config(t, s, "maxmemory", "1")
	err := run(t, c)
	wantClear(t, err)
	if !redis.HasErrorPrefix(err, "OOM") {
		t.Errorf("%v, want Redis's OOM", err)
	}
}

func TestMissingRightsAreClear(t *testing.T) {
	s := redistest.Real(t)
	config(t, s, "requirepass", "secret")
	bare := s.Client(t)
	err := run(t, bare)
	wantClear(t, err)
	if !redis.HasErrorPrefix(err, "NOAUTH") {
		t.Errorf("without a password: %v", err)
	}
	wrong := s.ClientWith(t, func(o *redis.Options) { o.Password = "wrong" })
	err = run(t, wrong)
	wantClear(t, err)
	if !redis.HasErrorPrefix(err, "WRONGPASS") {
		t.Errorf("with a wrong password: %v", err)
	}
	admin := s.ClientWith(t, func(o *redis.Options) { o.Password = "secret" })
	set := admin.Do(t.Context(), "ACL", "SETUSER", "u", "on", ">u", "~*", "+@all", "-incr")
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	wantClear(t, run(t, s.ClientWith(t, func(o *redis.Options) { o.Username, o.Password = "u", "u" })))
}

func TestReplicaThatMayNotWriteIsTriedAgainAndClear(t *testing.T) {
	s := redistest.Real(t, "--replicaof", "127.0.0.1", "1") // of a primary that is not there
	p := redistest.NewProxy(t, s)
	c := p.Client(t)
	err := run(t, c)
	wantClear(t, err)
	if !redis.IsReadOnlyError(err) {
		t.Errorf("%v, want READONLY", err)
	}
	// It becomes the primary while the script is being tried: two attempts
	// have failed when the third is let through.
	p.Reset()
	arrived, release := hold(p, 3)
	result := make(chan error, 1)
	go func() { result <- run(t, c) }()
	select {
	case <-arrived:
	case err := <-result:
		t.Fatalf("given up before the third attempt: %v", err)
	}
	if err := s.Client(t).ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Error(err)
	}
	release()
	if err := <-result; err != nil {
		t.Errorf("after the promotion: %v", err)
	}
}

// hold keeps back the nth request with count's hash from now on.
func hold(p *redistest.Proxy, n int) (arrived <-chan struct{}, release func()) {
	var releases []func()
	for range n {
		a, r := p.HoldRequest(count.Hash())
		arrived, releases = a, append(releases, r)
	}
	for _, r := range releases[:n-1] {
		r()
	}
	return arrived, releases[n-1]
}

func TestClosedClientIsClearAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		c.Close()
		err := run(t, c)
		wantClear(t, err)
		if !errors.Is(err, redis.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}

func TestPoolThatStaysFullIsClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.MiniInBubble(t)
		p := redistest.NewProxy(t, s)
		c := p.ClientWith(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 100*time.Millisecond })
		known(t, c, count)
		arrived, release := p.HoldRequest(count.Hash())
		first := make(chan error, 1)
		go func() { first <- run(t, c) }()
		<-arrived
		err := run(t, c)
		wantClear(t, err)
		if !errors.Is(err, redis.ErrPoolTimeout) {
			t.Errorf("%v, want ErrPoolTimeout", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = script.Run(ctx, c, count, []string{key})
		wantClear(t, err) // it waited for a connection only
		release()
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

func TestDialIntoABlackHoleIsClearAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.MiniInBubble(t)
		over := make(chan struct{})
		c := s.ClientWith(t, func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
				defer close(over)
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		_, err := script.Run(ctx, c, count, []string{key})
		wantClear(t, err)
		if took := time.Since(began); took != 700*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v, want DeadlineExceeded after 700ms", err, took)
		}
		<-over // go-redis goes on dialling for whoever comes next
	})
}

func TestFailedTLSIsClearAndNotRepeated(t *testing.T) {
	t.Run("unknown authority", func(t *testing.T) {
		var hellos atomic.Int64
		srv := httptest.NewUnstartedServer(nil)
		srv.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			hellos.Add(1)
			return nil, nil
		}}
		srv.Config.ErrorLog = quiet
		srv.StartTLS()
		defer srv.Close()
		c := redis.NewClient(&redis.Options{
			Addr: srv.Listener.Addr().String(), TLSConfig: &tls.Config{}, DialerRetries: 1,
		})
		defer c.Close()
		err := run(t, c)
		wantClear(t, err)
		var cert *tls.CertificateVerificationError
		if !errors.As(err, &cert) {
			t.Errorf("%v, want a certificate's", err)
		}
		if n := hellos.Load(); n != 1 {
			t.Errorf("dialled %d times", n)
		}
	})
	t.Run("plaintext server", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			c := s.ClientWith(t, func(o *redis.Options) {
				o.TLSConfig = &tls.Config{InsecureSkipVerify: true}
				o.DialTimeout = 50 * time.Millisecond // a Redis waits for the rest of the line
			})
			wantClear(t, run(t, c))
		})
	})
	t.Run("plaintext client", func(t *testing.T) {
		srv := httptest.NewUnstartedServer(nil)
		srv.Config.ErrorLog = quiet
		srv.StartTLS()
		defer srv.Close()
		c := redis.NewClient(&redis.Options{Addr: srv.Listener.Addr().String(), DialerRetries: 1})
		defer c.Close()
		wantClear(t, run(t, c))
	})
}

// breaker is a hook that lets nothing through, as a circuit breaker does.
type breaker struct{}

var errOpen = errors.New("circuit open")

func (breaker) DialHook(next redis.DialHook) redis.DialHook { return next }
func (breaker) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { return errOpen }
}
func (breaker) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return errOpen }
}

// The error of a pipeline that a hook had refused was overlooked, and the script
// in it taken for carried out.
func TestWhatAHookHoldsBackIsClear(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		c.AddHook(breaker{})
		for _, w := range []script.Wait{{}, {Replicas: 1}} {
			_, err := script.NewSender(c).Run(t.Context(), count, w, []string{key})
			wantClear(t, err)
			if !errors.Is(err, errOpen) {
				t.Errorf("with %+v: %v, want the hook's error", w, err)
			}
		}
	})
}
