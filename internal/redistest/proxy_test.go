package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
)

// onEach runs f on every kind of server a proxy can stand before, and in both
// protocols.
func onEach(t *testing.T, f func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client)) {
	t.Helper()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			run := func(t *testing.T, s *redistest.Server) {
				p := redistest.NewProxy(t, s)
				f(t, s, p, p.ClientWith(t, func(o *redis.Options) { o.Protocol = protocol }))
			}
			redistest.Each(t, run)
			t.Run("bubble", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { run(t, redistest.MiniInBubble(t)) })
			})
		})
	}
}

func noRetry(o *redis.Options) { o.MaxRetries = -1 }

func get(t *testing.T, s *redistest.Server, k string) string {
	t.Helper()
	v, err := s.Client(t).Get(t.Context(), k).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Error(err)
	}
	return v
}

func TestDroppedReplyIsReplayedByTheClient(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		p.DropReply("counter", 2)
		n, err := rdb.Incr(t.Context(), "counter").Result()
		if err != nil || n != 3 {
			t.Errorf("two replies lost: %d, %v", n, err)
		}
		if err := p.ClientWith(t, noRetry).Incr(t.Context(), "counter").Err(); err != nil {
			t.Errorf("the faults are used up: %v", err)
		}
		if got := get(t, s, "counter"); got != "4" {
			t.Errorf("the server counted %s", got)
		}
	})
}

func TestDroppedReplyWithoutRetry(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, _ *redis.Client) {
		rdb := p.ClientWith(t, noRetry)
		p.DropReply("counter", 1)
		if err := rdb.Incr(t.Context(), "other").Err(); err != nil {
			t.Errorf("a request without the marker: %v", err)
		}
		if err := rdb.Incr(t.Context(), "counter").Err(); err == nil {
			t.Error("a dropped reply arrived")
		}
		if got := get(t, s, "counter"); got != "1" {
			t.Errorf("the server counted %q", got)
		}
	})
}

func TestDroppedReplyInPipelineLosesWhatFollows(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, _ *redis.Client) {
		rdb := p.ClientWith(t, noRetry)
		p.DropReply("second", 1)
		if _, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for _, k := range []string{"first", "second", "third"} {
				pipe.Incr(t.Context(), k)
			}
			return nil
		}); err == nil {
			t.Error("the pipeline succeeded")
		}
		if got := get(t, s, "third"); got != "1" {
			t.Errorf("the server did not do the rest of the pipeline: %q", got)
		}
	})
}

func TestRefusedRequestDoesNotReachTheServer(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, _ *redis.Client) {
		rdb := p.ClientWith(t, noRetry)
		p.RefuseRequest("counter", 1)
		if err := rdb.Incr(t.Context(), "counter").Err(); err == nil {
			t.Error("a refused request succeeded")
		}
		if got := get(t, s, "counter"); got != "" {
			t.Errorf("the server counted %q", got)
		}
		if err := rdb.Incr(t.Context(), "counter").Err(); err != nil {
			t.Errorf("the fault is used up: %v", err)
		}
	})
}

func TestHeldReplyArrivesWhenReleased(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		release := p.HoldReply("counter")
		reply := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() { reply <- rdb.Incr(t.Context(), "counter").Err() })
		redistest.Wait(t, "the server to count", func() bool { return get(t, s, "counter") == "1" })
		select {
		case err := <-reply:
			t.Errorf("the held reply arrived: %v", err)
		default:
		}
		release()
		release()
		wg.Wait()
		if err := <-reply; err != nil {
			t.Error(err)
		}
	})
}

func TestHeldRequestArrivesAfterItsClientGaveUp(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, _ *redis.Client) {
		rdb := p.ClientWith(t, noRetry)
		arrived, release := p.HoldRequest("counter")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := rdb.IncrBy(ctx, "counter", 10).Err(); err == nil {
			t.Error("a held request succeeded")
		}
		<-arrived
		if err := rdb.Incr(t.Context(), "counter").Err(); err != nil {
			t.Errorf("the next request was held too: %v", err)
		}
		if got := get(t, s, "counter"); got != "1" {
			t.Errorf("before the late copy: %q", got)
		}
		release()
		redistest.Wait(t, "the late copy", func() bool { return get(t, s, "counter") == "11" })
	})
}

func TestHoldsEndWithTheTest(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, _ *redistest.Proxy, _ *redis.Client) {
		var wg sync.WaitGroup
		t.Cleanup(wg.Wait) // runs when the proxy below has ended
		p := redistest.NewProxy(t, s)
		arrived, _ := p.HoldRequest("a")
		p.HoldReply("b")
		for _, k := range []string{"a", "b"} {
			rdb := p.ClientWith(t, noRetry)
			wg.Go(func() { _ = rdb.Incr(context.WithoutCancel(t.Context()), k).Err() })
		}
		<-arrived
		redistest.Wait(t, "b to be counted", func() bool { return get(t, s, "b") == "1" })
	})
}

func TestReplaySendsALateCopy(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		p.Record("counter")
		rdb.Incr(t.Context(), "unmarked")
		rdb.Incr(t.Context(), "counter")
		if _, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.IncrBy(t.Context(), "counter", 4)
			pipe.HSet(t.Context(), "counter", "f", "\r\n*\x00")
			return nil
		}); !redis.HasErrorPrefix(err, "WRONGTYPE") {
			t.Errorf("a wrong command: %v", err)
		}
		raw := p.Captured()
		if len(raw) != 3 {
			t.Fatalf("captured %q", raw)
		}
		for i, want := range []string{":6", ":10", "-WRONGTYPE"} {
			if got := p.Replay(t, raw[i]); !strings.HasPrefix(got, want) {
				t.Errorf("reply %q, want %s", got, want)
			}
		}
		p.Reset()
		if len(p.Captured()) != 0 {
			t.Error("Reset kept what was captured")
		}
		rdb.Incr(t.Context(), "counter")
		if len(p.Captured()) != 1 {
			t.Error("Reset ended the recording")
		}
		if got := get(t, s, "counter"); got != "11" {
			t.Errorf("the server counted %s", got)
		}
	})
}

func TestRoundTripsCountAPipelineOnce(t *testing.T) {
	onEach(t, func(t *testing.T, _ *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		rdb.Ping(t.Context())
		if n := p.RoundTrips(); n != 1 {
			t.Errorf("%d round trips: the handshake was counted", n)
		}
		p.Reset()
		rdb.Get(t.Context(), "k")
		rdb.Eval(t.Context(), "for i = 1, 5 do redis.call('incr', KEYS[1]) end", []string{"k"})
		if _, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for range 100 {
				pipe.Set(t.Context(), "k", strings.Repeat("x", 1000), 0)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if n := p.RoundTrips(); n != 3 {
			t.Errorf("%d round trips, want 3", n)
		}
		if n := p.Requests(); n != 102 {
			t.Errorf("%d requests, want 102", n)
		}
	})
}

func TestHealEndsAllFaults(t *testing.T) {
	onEach(t, func(t *testing.T, _ *redistest.Server, p *redistest.Proxy, _ *redis.Client) {
		rdb := p.ClientWith(t, noRetry)
		p.DropReply("k", 100)
		p.RefuseRequest("k", 100)
		p.HoldReply("k")
		p.HoldRequest("k")
		p.Heal()
		if err := rdb.Incr(t.Context(), "k").Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestCutClosesConnections(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		for range 5 {
			p.Cut()
			if err := rdb.Incr(t.Context(), "k").Err(); err != nil {
				t.Errorf("after a cut: %v", err)
			}
		}
		if got := get(t, s, "k"); got != "5" {
			t.Errorf("the server counted %s", got)
		}
	})
}

func TestSubscriptionsPassTheProxy(t *testing.T) {
	onEach(t, func(t *testing.T, _ *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		sub := rdb.Subscribe(t.Context(), "a", "b", "c")
		defer sub.Close()
		for range 3 {
			if _, err := sub.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		p.DropReply("c", 1) // hits the publisher below, which tries again
		rdb.Publish(t.Context(), "c", "1")
		for range 2 {
			if m, err := sub.ReceiveMessage(t.Context()); err != nil || m.Channel != "c" {
				t.Errorf("received %v, %v", m, err)
			}
		}
	})
}

func TestEveryKindOfReplyPassesTheProxy(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		direct := s.ClientWith(t, func(o *redis.Options) { o.Protocol = rdb.Options().Protocol })
		if err := direct.HSet(t.Context(), "h", "f", "v", "g", "").Err(); err != nil {
			t.Fatal(err)
		}
		direct.ZAdd(t.Context(), "z", redis.Z{Score: 1.5, Member: "m"})
		direct.SAdd(t.Context(), "s", "m")
		for _, args := range [][]any{
			{"get", "none"}, {"hgetall", "h"}, {"hgetall", "none"}, {"zrange", "z", 0, -1, "withscores"},
			{"zscore", "z", "m"}, {"smembers", "s"}, {"nonsense"}, {"ping"}, {"echo", ""},
			{"eval", "return {1, {2, {}}, 'x', false}", 0},
			{"eval", "redis.setresp(3) return redis.call('hgetall', KEYS[1])", 1, "h"},
			{"blpop", "none", "0.01"},
		} {
			want, wantErr := direct.Do(t.Context(), args...).Result()
			got, err := rdb.Do(t.Context(), args...).Result()
			if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
				t.Errorf("%v: %v, %v through the proxy, %v, %v without", args, got, err, want, wantErr)
			}
		}
	})
}

func TestManyClientsShareAProxy(t *testing.T) {
	onEach(t, func(t *testing.T, s *redistest.Server, p *redistest.Proxy, rdb *redis.Client) {
		p.Record("none")
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 25 {
					if err := rdb.Incr(t.Context(), "k").Err(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := p.RoundTrips(); n != 200 {
			t.Errorf("%d round trips, want 200", n)
		}
	})
}
