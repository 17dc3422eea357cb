package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

func nothing(context.Context, entry) error { return nil }

// BenchmarkDoUncontended sets a write that nobody is in the way of beside the
// lock alone, plain redislock's Obtain and Release: both are two round trips.
func BenchmarkDoUncontended(b *testing.B) {
	plain := func(rdb *redis.Client) func(context.Context, string) error {
		locks := redislock.New(rdb)
		return func(ctx context.Context, key string) error {
			l, err := locks.Obtain(ctx, "lock:"+key, 10*time.Second, nil)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		}
	}
	ours := func(rdb *redis.Client) func(context.Context, string) error {
		x := wrap(b, newWorker(b, rdb, worker.Config{}), nothing)
		return func(ctx context.Context, key string) error {
			_, err := x.Do(ctx, entry{To: key, ID: key})
			return err
		}
	}
	for _, callers := range []int{1, 16, 64, 256} {
		for _, c := range []struct {
			name string
			make func(*redis.Client) func(context.Context, string) error
		}{{"redislock", plain}, {"Do", ours}} {
			b.Run(fmt.Sprintf("%s/callers=%d", c.name, callers), func(b *testing.B) {
				f := c.make(redistest.Real(b).ClientWith(b, func(o *redis.Options) { o.PoolSize = 64 }))
				spread(b, callers, f)
			})
		}
	}
}

// spread calls f b.N times from so many goroutines, each with a key of its own.
func spread(b *testing.B, callers int, f func(context.Context, string) error) {
	if err := f(b.Context(), "warm"); err != nil {
		b.Fatal(err)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range callers {
		all.Go(func() {
			for key := strconv.Itoa(i); left.Add(-1) >= 0; {
				if err := f(b.Context(), key); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkDeferredDo is a write that has to wait, whatever waits before it.
func BenchmarkDeferredDo(b *testing.B) {
	rdb := redistest.Real(b).Client(b)
	x := wrap(b, newWorker(b, rdb, worker.Config{}), nothing)
	if err := rdb.Set(b.Context(), "{w:0}:lock:a", "foreign", time.Hour).Err(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if out, err := x.Do(b.Context(), entry{To: "a", ID: strconv.Itoa(i)}); err != nil || !out.Deferred {
			b.Fatal(out, err)
		}
	}
}

// BenchmarkHotResource has 16 submitters write to one resource, 1 ms each. The
// bound is that they do so one after the other. Beside it is the plain recipe:
// lock, push on conflict, pop five of any age and try again.
func BenchmarkHotResource(b *testing.B) {
	const submitters = 16
	b.Run("plain", func(b *testing.B) {
		s := redistest.Real(b)
		rdb := s.ClientWith(b, func(o *redis.Options) { o.PoolSize = 64 })
		k := &kaito{rdb: rdb, locks: redislock.New(rdb)}
		hot(b, s, submitters, k.do, func(ctx context.Context) {
			var poppers sync.WaitGroup
			for range submitters {
				poppers.Go(func() { k.poll(ctx) })
			}
			poppers.Wait()
		}, &k.busy)
	})
	b.Run("deferlock", func(b *testing.B) {
		s := redistest.Real(b)
		w := newWorker(b, s.ClientWith(b, func(o *redis.Options) { o.PoolSize = 64 }), worker.Config{})
		var m millisecond
		x := wrap(b, w, func(context.Context, entry) error {
			m.write()
			return nil
		})
		hot(b, s, submitters, func(ctx context.Context, id string) error {
			_, err := x.Do(ctx, entry{To: "hot", ID: id})
			return err
		}, func(ctx context.Context) { _ = w.Run(ctx) }, &m)
	})
}

// millisecond is a write that takes as long, and counts.
type millisecond struct{ done, took atomic.Int64 }

func (m *millisecond) write() {
	began := time.Now()
	<-time.After(time.Millisecond)
	m.took.Add(int64(time.Since(began)))
	m.done.Add(1)
}

func hot(b *testing.B, s *redistest.Server, submitters int, do func(context.Context, string) error, run func(context.Context), m *millisecond) {
	ctx, cancel := context.WithCancel(b.Context())
	var running, all sync.WaitGroup
	running.Go(func() { run(ctx) })
	before := s.Commands(b)
	b.ResetTimer()
	for n := range submitters {
		all.Go(func() {
			for i := n; i < b.N; i += submitters {
				if err := do(ctx, strconv.Itoa(i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	for done := time.NewTicker(time.Millisecond); m.done.Load() < int64(b.N); {
		<-done.C
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
	b.ReportMetric(float64(m.took.Load())/float64(b.Elapsed()), "of-bound")
	b.ReportMetric(float64(s.Commands(b)-before)/float64(b.N), "commands/write")
	cancel()
	running.Wait()
}

// kaito is the recipe without this library.
type kaito struct {
	rdb   *redis.Client
	locks *redislock.Client
	busy  millisecond
}

func (k *kaito) do(ctx context.Context, id string) error {
	l, err := k.locks.Obtain(ctx, "lock:hot", 10*time.Second, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		_, err = k.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "write:"+id, id, 0)
			p.ZAdd(ctx, "queue", redis.Z{Score: float64(time.Now().UnixMicro()), Member: id})
			return nil
		})
		return err
	}
	if err != nil {
		return err
	}
	k.busy.write()
	return l.Release(ctx)
}

var kaitoPop = redis.NewScript(`
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 5)
for _, id in ipairs(ids) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('DEL', 'write:' .. id)
end
return ids`)

func (k *kaito) poll(ctx context.Context) {
	for ctx.Err() == nil {
		ids, _ := kaitoPop.Run(ctx, k.rdb, []string{"queue"}, time.Now().UnixMicro()).StringSlice()
		for _, id := range ids {
			_ = k.do(ctx, id)
		}
		if len(ids) == 0 {
			<-time.After(time.Millisecond)
		}
	}
}

var fill = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2] - 1e9
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local lane = ARGV[3] == '1' and 'a' or 'a' .. i
  local id, s = string.format('%.0f', i), string.format('%.0f', now + i)
  redis.call('SET', '{w:0}:write:' .. lane .. '\0' .. id, ARGV[4])
  redis.call('ZADD', '{w:0}:lane:' .. lane, s, id)
  redis.call('ZADD', '{w:0}:due', 'LT', s, lane)
  redis.call('SET', '{w:0}:clock', s)
end`)

// BenchmarkTakeWithBacklog is a look, an entry into the lane found, and giving it
// back, with so many writes waiting: in a lane of their own each, or in one.
func BenchmarkTakeWithBacklog(b *testing.B) {
	for _, shape := range []string{"lanes", "one lane"} {
		for _, backlog := range []int{1_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/waiting=%d", shape, backlog), func(b *testing.B) {
				rdb := redistest.Real(b).ClientWith(b, func(o *redis.Options) { o.ReadTimeout = time.Minute })
				q, err := deferral.New(rdb, deferral.Config{Name: "w"})
				if err != nil {
					b.Fatal(err)
				}
				one := map[string]int{"lanes": 0, "one lane": 1}[shape]
				for i := 0; i < backlog; i += 10_000 {
					err := fill.Run(b.Context(), rdb, nil, i, min(i+10_000, backlog)-1, one, "\x01\x00\x00\x00\x00\x00{}").Err()
					if err != nil && !errors.Is(err, redis.Nil) {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					visit(b, q)
				}
			})
		}
	}
}

func visit(b *testing.B, q *deferral.Queue) {
	due, err := q.Due(b.Context(), 0, 1, 0, 0)
	if err != nil || len(due.Lanes) != 1 {
		b.Fatal(due, err)
	}
	turn, err := q.Enter(b.Context(), due.Lanes[0], 100, 0)
	if err != nil || turn == nil {
		b.Fatal(turn, err)
	}
	s := deferral.Settlement{GoOn: deferral.Always}
	for _, d := range turn.Deliveries() {
		s.Verdicts = append(s.Verdicts, deferral.Verdict{Delivery: d, Fate: deferral.Return})
	}
	if _, err := turn.Settle(b.Context(), s); err != nil {
		b.Fatal(err)
	}
}
