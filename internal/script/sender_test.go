package script_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/internal/script"
)

// crowded is a Sender with so many flights under way, all of them held, that
// whatever comes next waits.
type crowded struct {
	*script.Sender
	server *redistest.Server
	proxy  *redistest.Proxy
	held   sync.WaitGroup
	land   func() // lets the flights go on
}

func newCrowded(t *testing.T, s *redistest.Server, change func(*redis.Options)) *crowded {
	t.Helper()
	p := redistest.NewProxy(t, s)
	c := p.ClientWith(t, func(o *redis.Options) {
		o.PoolSize, o.ReadTimeout = 2*script.MostFlights, time.Minute // what is held stays so
		if change != nil {
			change(o)
		}
	})
	known(t, c, first)
	if _, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error { // dials: it is not to be counted
		p.Ping(t.Context())
		p.Ping(t.Context())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f := &crowded{Sender: script.NewSender(c), server: s, proxy: p}
	var land []func()
	for i := range script.MostFlights {
		name := fmt.Sprintf("{n:0}:held-%d-", i)
		arrived, release := p.HoldRequest(name)
		land = append(land, release)
		f.held.Go(func() { _ = f.once(t.Context(), name) })
		<-arrived
	}
	f.land = func() {
		for _, release := range land {
			release()
		}
		f.held.Wait()
	}
	p.Reset()
	return f
}

// once runs first on a key.
func (f *crowded) once(ctx context.Context, key string) error {
	_, err := f.Run(ctx, first, script.Wait{}, []string{key})
	return err
}

// queue makes n calls that wait, and returns where their errors come.
func (f *crowded) queue(t *testing.T, n int) <-chan error {
	t.Helper()
	errs := make(chan error, n)
	before := f.Queued()
	for i := range n {
		go func() { errs <- f.once(t.Context(), fmt.Sprintf("{n:0}:q%d", i)) }()
	}
	redistest.Wait(t, "the calls queue", func() bool { return f.Queued() == before+n })
	return errs
}

// want fails unless n errors come that are all as they should be.
func want(t *testing.T, errs <-chan error, n int, ok func(error) bool) {
	t.Helper()
	for range n {
		if err := <-errs; !ok(err) {
			t.Errorf("a call ended with %v", err)
		}
	}
}

func none(err error) bool { return err == nil }

// counts is how often each of the n queued calls was carried out.
func (f *crowded) counts(t *testing.T, n int) (out []int) {
	t.Helper()
	c := f.server.Client(t)
	for i := range n {
		v, err := c.IncrBy(t.Context(), fmt.Sprintf("{n:0}:q%d", i), 0).Result()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, int(v))
	}
	return out
}

func (f *crowded) onceEach(t *testing.T, n int) {
	t.Helper()
	for i, v := range f.counts(t, n) {
		if v != 1 {
			t.Errorf("call %d took effect %d times", i, v)
		}
	}
	redistest.Wait(t, "nothing is under way", f.Idle)
}

func TestCallsOfACrowdShareFlights(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		f := newCrowded(t, s, nil)
		const n = script.MostTogether + 10
		errs := f.queue(t, n)
		f.land()
		want(t, errs, n, none)
		if rt, sent := f.proxy.RoundTrips(), f.proxy.Requests(); rt != 2 || sent != n {
			t.Errorf("%d calls took %d commands in %d round trips, want 2", n, sent, rt)
		}
		f.onceEach(t, n)
	})
}

func TestFewCallsNeverWait(t *testing.T) {
	s := redistest.Mini(t)
	p := redistest.NewProxy(t, s)
	c := p.Client(t)
	known(t, c, first)
	sender := script.NewSender(c)
	var land []func()
	var all sync.WaitGroup
	for i := range script.Crowd {
		name := fmt.Sprintf("{n:0}:held-%d-", i)
		arrived, release := p.HoldRequest(name)
		land = append(land, release)
		all.Go(func() {
			if _, err := sender.Run(t.Context(), first, script.Wait{}, []string{name}); err != nil {
				t.Error(err)
			}
		})
		<-arrived
		if sender.Queued() != 0 {
			t.Errorf("call %d waited", i)
		}
	}
	for _, release := range land {
		release()
	}
	all.Wait()
}

func TestQueuedCallThatEndsIsNotSent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		f := newCrowded(t, s, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("enough")
		errs := make(chan error, 2)
		go func() { errs <- f.once(ctx, "{n:0}:never") }()
		redistest.Wait(t, "the call queues", func() bool { return f.Queued() == 1 })
		cancel(reason)
		err := <-errs
		wantClear(t, err)
		if !errors.Is(err, reason) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v does not say why", err)
		}
		// A deadline that Done knows nothing of.
		go func() {
			errs <- f.once(script.Until(t.Context(), time.Now().Add(20*time.Millisecond)), "{n:0}:never")
		}()
		err = <-errs
		wantClear(t, err)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not say why", err)
		}
		f.land()
		if n := s.Client(t).Exists(t.Context(), "{n:0}:never").Val(); n != 0 {
			t.Error("a call that had ended was sent")
		}
		redistest.Wait(t, "nothing is under way", f.Idle)
	})
}

func TestCallThatEndsInFlightIsUnclearAndHarmsNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		f := newCrowded(t, s, nil)
		arrived, release := f.proxy.HoldRequest("{n:0}:q0")
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- f.once(ctx, "{n:0}:gone") }()
		redistest.Wait(t, "the call queues", func() bool { return f.Queued() == 1 })
		errs := f.queue(t, 20)
		f.land()
		<-arrived
		cancel()
		wantUnclear(t, <-gone) // with the others still on their way
		release()
		want(t, errs, 20, none)
		f.onceEach(t, 20)
	})
}

// Each call repeats itself, and only itself, when its flight is lost.
func TestLostFlightIsRepeatedByEachOfItsCalls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, fault := range map[string]func(p *redistest.Proxy){
			"all replies":   func(p *redistest.Proxy) { p.DropReply("{n:0}:q0", 1) },
			"a later reply": func(p *redistest.Proxy) { p.DropReply("{n:0}:q7", 1) },
			"the request":   func(p *redistest.Proxy) { p.RefuseRequest("{n:0}:q0", 1) },
		} {
			t.Run(name, func(t *testing.T) {
				f := newCrowded(t, s, nil)
				s.Client(t).FlushDB(t.Context())
				errs := f.queue(t, 20)
				fault(f.proxy)
				f.land()
				want(t, errs, 20, none)
				f.onceEach(t, 20)
			})
		}
	})
}

func TestLostFlightOfAServerThatIsGoneIsUnclear(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var gone atomic.Bool
		f := newCrowded(t, s, func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if gone.Load() {
					return nil, errors.New("nobody there")
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
		})
		errs := f.queue(t, 20)
		arrived, release := f.proxy.HoldRequest("{n:0}:q0")
		f.land()
		<-arrived
		gone.Store(true)
		f.proxy.Cut()
		want(t, errs, 20, func(err error) bool { return errors.Is(err, script.ErrUnclear) })
		release()
	})
}

func TestRefusalInAFlightIsTheRefusedCallsOwn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		f := newCrowded(t, s, nil)
		s.Client(t).LPush(t.Context(), "{n:0}:q3", "no number")
		bad := make(chan error, 1)
		go func() {
			_, err := f.Run(t.Context(), count, script.Wait{}, []string{"{n:0}:q3"})
			bad <- err
		}()
		redistest.Wait(t, "the call queues", func() bool { return f.Queued() == 1 })
		good := make(chan error, 5)
		for i := range 5 {
			go func() { good <- f.once(t.Context(), fmt.Sprintf("{n:0}:good%d", i)) }()
		}
		redistest.Wait(t, "the call queues", func() bool { return f.Queued() == 6 })
		f.land()
		want(t, good, 5, none)
		err := <-bad
		wantClear(t, err)
		if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("the refused call ended with %v", err)
		}
	})
}

func TestForgottenScriptIsSentAgainByAllOfAFlight(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		f := newCrowded(t, s, nil)
		errs := f.queue(t, 20)
		s.Client(t).ScriptFlush(t.Context())
		f.land()
		want(t, errs, 20, none)
		f.onceEach(t, 20)
	})
}

// Two flights on dead connections held up everybody.
func TestFlightsThatHangDoNotHoldUpTheOthers(t *testing.T) {
	s := redistest.Mini(t)
	p := redistest.NewProxy(t, s)
	c := p.Client(t)
	known(t, c, first)
	sender := script.NewSender(c)
	var all sync.WaitGroup
	var land []func()
	for i := range script.MostFlights - 1 {
		name := fmt.Sprintf("{n:0}:dead-%d-", i)
		arrived, release := p.HoldRequest(name)
		land = append(land, release)
		all.Go(func() { _, _ = sender.Run(t.Context(), first, script.Wait{}, []string{name}) })
		<-arrived
	}
	for i := range 50 {
		if _, err := sender.Run(t.Context(), first, script.Wait{}, []string{fmt.Sprintf("{n:0}:live%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, release := range land {
		release()
	}
	all.Wait()
}

func TestLargeCallFliesAlone(t *testing.T) {
	s := redistest.Mini(t)
	f := newCrowded(t, s, nil)
	large := strings.Repeat("x", script.Shareable)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := f.Run(ctx, first, script.Wait{}, []string{"{n:0}:large"}, large); err != nil {
		t.Errorf("%v: it waited for flights that are held", err)
	}
	f.land()
}

// exits is a hook that ends the goroutine of every pipeline, as a test's FailNow
// does.
type exits struct{ redis.Hook }

func (exits) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (exits) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (exits) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error {
		runtime.Goexit()
		return nil
	}
}

func TestHookThatEndsTheFlightLeavesNobodyWaiting(t *testing.T) {
	s := redistest.Mini(t)
	c := s.ClientWith(t, func(o *redis.Options) { o.PoolSize = 2 * script.MostFlights })
	known(t, c, first)
	c.AddHook(exits{})
	sender := script.NewSender(c)
	var all sync.WaitGroup
	var failed atomic.Int64
	for i := range 300 {
		all.Go(func() {
			for n := range 20 {
				if _, err := sender.Run(t.Context(), first, script.Wait{}, []string{fmt.Sprintf("{n:0}:%d-%d", i, n)}); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	redistest.Wait(t, "nothing is under way", sender.Idle)
	if failed.Load() == 0 {
		t.Error("no pipeline was sent: the hook was never asked")
	}
}

// Waiting for a flight saves nothing where the way is long.
func TestMoreFlightsAreEnoughForAServerThatIsFar(t *testing.T) {
	s := redistest.Real(t)
	var far atomic.Bool
	c := s.ClientWith(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return slow{conn, &far}, err
		}
	})
	known(t, c, first)
	sender := script.NewSender(c)
	near := sender.Enough()
	for _, distant := range []bool{true, false} {
		far.Store(distant)
		redistest.Wait(t, "it is noticed", func() bool {
			for range script.WayFlights {
				if _, err := sender.Run(t.Context(), first, script.Wait{}, []string{key}); err != nil {
					t.Fatal(err)
				}
			}
			return distant == (sender.Enough() > near)
		})
	}
}

// slow is a connection to a server that is far.
type slow struct {
	net.Conn
	far *atomic.Bool
}

// Write takes as long as the way.
func (c slow) Write(b []byte) (int, error) {
	if c.far.Load() {
		<-time.After(time.Millisecond)
	}
	return c.Conn.Write(b)
}
