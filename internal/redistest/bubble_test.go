package redistest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
)

func TestKeysExpireInVirtualTime(t *testing.T) {
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		rdb := redistest.MiniInBubble(t).Client(t)
		if err := rdb.Set(t.Context(), "k", "v", 31*time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(31*time.Second - time.Millisecond)
		if err := rdb.Get(t.Context(), "k").Err(); err != nil {
			t.Errorf("before its time: %v", err)
		}
		time.Sleep(time.Millisecond)
		if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("at its time: %v", err)
		}
	})
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("31 virtual seconds took %v", took)
	}
}

func TestScriptsSeeTheVirtualClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redistest.MiniInBubble(t).Client(t)
		clock := redis.NewScript("local t = redis.call('TIME') return t[1] * 1000000 + t[2]")
		ask := func() time.Time {
			us, err := clock.Run(t.Context(), rdb, nil).Int64()
			if err != nil {
				t.Fatal(err)
			}
			return time.UnixMicro(us)
		}
		for range 3 {
			if got := ask(); !got.Equal(time.Now()) {
				t.Errorf("TIME is %v, the bubble's clock %v", got, time.Now())
			}
			time.Sleep(17 * time.Minute)
		}
	})
}

func TestPubSubInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.MiniInBubble(t)
		for _, rdb := range []*redis.Client{s.Client(t), redistest.NewProxy(t, s).Client(t)} {
			sub := rdb.Subscribe(t.Context(), "nudge")
			if _, err := sub.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
			messages := sub.Channel()
			for _, payload := range []string{"a", "b"} {
				if n := rdb.Publish(t.Context(), "nudge", payload).Val(); n != 1 {
					t.Errorf("%d subscribers", n)
				}
				if m := <-messages; m.Payload != payload {
					t.Errorf("received %q, want %q", m.Payload, payload)
				}
				time.Sleep(time.Hour)
			}
			if err := sub.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestClientTimesOutInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.NewProxy(t, redistest.MiniInBubble(t))
		rdb := p.Client(t)
		defer p.HoldReply("k")()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := rdb.Incr(ctx, "k").Err(); err == nil {
			t.Error("a held reply arrived")
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("gave up after %v", took)
		}
	})
}

func TestKillAndRestartInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.MiniInBubble(t)
		p := redistest.NewProxy(t, s)
		for _, rdb := range []*redis.Client{s.Client(t), p.Client(t)} {
			if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			s.Kill(t)
			if err := rdb.Get(t.Context(), "k").Err(); err == nil {
				t.Error("a killed server answers")
			}
			s.Restart(t)
			if err := rdb.Get(t.Context(), "k").Err(); err != nil {
				t.Errorf("after the restart: %v", err)
			}
			if n := s.Commands(t); n == 0 {
				t.Error("nothing counted")
			}
		}
	})
}
