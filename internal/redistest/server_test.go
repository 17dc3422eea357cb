package redistest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
)

func TestEachStartsWithAnEmptyServer(t *testing.T) {
	for range 2 {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			rdb := s.Client(t)
			if n := rdb.DBSize(t.Context()).Val(); n != 0 {
				t.Errorf("the server has %d keys", n)
			}
			if err := rdb.Set(t.Context(), "left", "behind", 0).Err(); err != nil {
				t.Error(err)
			}
			if s.IsReal() != (s.Mini() == nil) || s.IsReal() != (s.Dir() != "") {
				t.Error("the server does not know what it is")
			}
		})
	}
}

func TestKeysExpireByTheWallClock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		if err := rdb.Set(t.Context(), "k", "v", 20*time.Millisecond).Err(); err != nil {
			t.Fatal(err)
		}
		redistest.Wait(t, "the key to expire", func() bool {
			return errors.Is(rdb.Get(t.Context(), "k").Err(), redis.Nil)
		})
	})
}

func TestKillAndRestart(t *testing.T) {
	persistent := func(t *testing.T) *redistest.Server {
		return redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always")
	}
	forgetful := func(t *testing.T) *redistest.Server { return redistest.Real(t) }
	mini := func(t *testing.T) *redistest.Server { return redistest.Mini(t) }
	for _, tt := range []struct {
		name  string
		start func(t *testing.T) *redistest.Server
		keeps bool
	}{{"appendonly", persistent, true}, {"default", forgetful, false}, {"miniredis", mini, true}} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.start(t)
			rdb := s.Client(t)
			if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			addr := s.Addr()
			s.Kill(t)
			if err := rdb.Ping(t.Context()).Err(); err == nil {
				t.Fatal("a killed server answers")
			}
			s.Restart(t)
			if s.Addr() != addr {
				t.Errorf("the address was %s and is %s", addr, s.Addr())
			}
			if got := rdb.Exists(t.Context(), "k").Val() == 1; got != tt.keeps {
				t.Errorf("the key is there: %v, want %v", got, tt.keeps)
			}
		})
	}
}

func TestArgumentsOverrideTheHarnessOwn(t *testing.T) {
	s := redistest.Real(t, "--maxmemory", "1mb", "--enable-debug-command", "local")
	rdb := s.Client(t)
	err := rdb.Set(t.Context(), "k", strings.Repeat("x", 2<<20), 0).Err()
	if !redis.HasErrorPrefix(err, "OOM") {
		t.Errorf("over maxmemory: %v", err)
	}
	if err := rdb.Do(t.Context(), "debug", "sleep", "0").Err(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(s.Dir(), "redis.log")); err != nil {
		t.Error(err)
	}
}

func TestCommandsCountsWhatScriptsCallAndNotTheHarness(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		if n := s.Commands(t); n != 0 {
			t.Errorf("%d commands before the first", n)
		}
		rdb.Ping(t.Context())
		before := s.Commands(t)
		s.FlushScripts(t)
		if err := rdb.Eval(t.Context(), "redis.call('incr', KEYS[1]) return redis.call('incr', KEYS[1])", []string{"k"}).Err(); err != nil {
			t.Fatal(err)
		}
		if n := s.Commands(t) - before; n != 3 {
			t.Errorf("%d commands, want the script and its two", n)
		}
		s.Kill(t)
		s.Restart(t)
		if n := s.Commands(t); n != 0 {
			t.Errorf("%d commands after a restart", n)
		}
	})
}

func TestFlushScripts(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		sha, err := rdb.ScriptLoad(t.Context(), "return 1").Result()
		if err != nil {
			t.Fatal(err)
		}
		s.FlushScripts(t)
		if err := rdb.EvalSha(t.Context(), sha, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
			t.Errorf("after the flush: %v", err)
		}
	})
}

func TestClientHonoursDeadlines(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := rdb.BLPop(ctx, 0, "nothing").Err(); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a blocking call past its deadline: %v", err)
		}
	})
}
