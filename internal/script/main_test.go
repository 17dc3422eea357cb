package script_test

import (
	"context"
	"io"
	"log"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/internal/script"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// count adds one to KEYS[1], every time it is carried out.
var count = script.New(`return redis.call('INCR', KEYS[1])`)

// first adds one to KEYS[1] unless it is there: it is safe to run twice, and
// replies whether this was the first time.
var first = script.New(`if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
return redis.call('INCR', KEYS[1])`)

const key = "{n:0}:k"

// one gives a client a single connection, so that a test knows when it is
// dialled anew.
func one(opts *redis.Options) { opts.PoolSize, opts.MaxRetries = 1, 3 }

// known makes the server behind c remember s, so that s travels as its hash.
func known(t *testing.T, c *redis.Client, s *script.Script) {
	t.Helper()
	if _, err := script.Run(t.Context(), c, s, []string{"{n:0}:other"}); err != nil {
		t.Fatal(err)
	}
}

// value is what key holds, 0 if nothing.
func value(t *testing.T, c *redis.Client) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	n, err := c.IncrBy(ctx, key, 0).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// quiet is for servers that complain about what a test does to them.
var quiet = log.New(io.Discard, "", 0)
