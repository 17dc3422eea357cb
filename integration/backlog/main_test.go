package backlog_test

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/integration/servers"
)

var writes = flag.Int("writes", 10_000, "how many deferred writes wait")

func TestMain(m *testing.M) { servers.Main(m) }

// name is the Name of the queue, and what the keys of the plain layout begin with.
const name = "accounts"

const kind = "credit"

// pushers is how many push at a time when a backlog is built.
const pushers = 64

// store is a Redis that keeps nothing on a disk.
type store struct {
	t     *testing.T
	redis *servers.Redis
	admin *redis.Client // one connection, and the only one while something is measured
}

func newStore(t *testing.T) *store {
	t.Helper()
	r := servers.NewRedis(t, "--appendonly", "no")
	opts := r.Options()
	opts.PoolSize = 1
	admin := redis.NewClient(opts)
	t.Cleanup(func() { _ = admin.Close() })
	return &store{t: t, redis: r, admin: admin}
}

// client is a client with a connection for each of n goroutines.
func (s *store) client(n int) *redis.Client {
	opts := s.redis.Options()
	opts.PoolSize = n
	return redis.NewClient(opts)
}

func (s *store) queue(rdb redis.UniversalClient) *deferral.Queue {
	s.t.Helper()
	q, err := deferral.New(rdb, deferral.Config{Name: name})
	if err != nil {
		s.t.Fatal(err)
	}
	return q
}

// info is one number of INFO.
func (s *store) info(field string) int {
	s.t.Helper()
	text, err := s.admin.Info(s.t.Context()).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatalf("INFO does not say %s", field)
	return 0
}

// each runs f for every number from first on up to last, in many goroutines.
func each(ctx context.Context, first, last int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int, pushers)
	for range pushers {
		wg.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(fmt.Errorf("write %d: %w", i, err))
				}
			}
		})
	}
	for i := first; i < last && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// push stores the writes first to last, of the sizes and under the resources
// that the functions name.
func (s *store) push(first, last int, size func(i int) int, of func(i int) string) {
	s.t.Helper()
	rdb := s.client(pushers)
	defer rdb.Close()
	q, payload := s.queue(rdb), make([]byte, 1<<16)
	err := each(s.t.Context(), first, last, func(ctx context.Context, i int) error {
		_, err := q.Push(ctx, deferral.Write{Resource: of(i), Kind: kind, Payload: payload[:size(i)]})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// pushPlainly stores n writes as the kaito recipe does: the payload in a String,
// its key in a ZSET by the time of the push in ms.
func (s *store) pushPlainly(n int, size func(i int) int) {
	s.t.Helper()
	const atOnce = 500
	rdb := s.client(1)
	defer rdb.Close()
	payload := make([]byte, 1<<16)
	for i := 0; i < n; i += atOnce {
		_, err := rdb.Pipelined(s.t.Context(), func(p redis.Pipeliner) error {
			for j := i; j < min(i+atOnce, n); j++ {
				key := name + ":" + uuid.NewString()
				p.Set(s.t.Context(), key, payload[:size(j)], 0)
				p.ZAdd(s.t.Context(), name, redis.Z{Score: float64(1_700_000_000_000 + j), Member: key})
			}
			return nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
}
