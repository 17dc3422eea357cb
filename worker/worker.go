// Package worker runs writes one at a time for each resource, and defers the
// ones that cannot run now.
//
// [Wrap] makes a [Writer] of a function that writes. [Writer.Do] runs the
// function at once if nobody holds the resource's lock and nothing waits for
// it; otherwise it stores the write in Redis and returns. [Worker.Run], in this
// process or in another, runs what was stored, in order.
//
// # What is promised
//
//   - Do never waits for a lock.
//   - Writes to one resource do not overlap, and take effect in the order in
//     which Do accepted them, whatever happens between: a write that arrives
//     while others wait gets in line behind them.
//   - A write that was deferred stays in Redis until it has run or is a dead
//     letter, to the durability level of [Config.Replicas].
//   - What it costs does not grow with the backlog, nor with how hot a resource
//     is.
//
// # What is not promised
//
// Delivery is at least once: a process that dies between its write and the
// acknowledgement leaves a write that runs again. And a process that is paused
// for longer than its lock lives is cancelled when it wakes, not stopped: what
// it has already sent to the database may arrive after its successor's. Package
// worker/pgfence closes both gaps for Postgres, inside the write's own
// transaction. Redis itself can lose its last moments, in a power cut or a
// failover, even a planned one: see Config.Replicas.
//
// A write that runs at once is not in Redis. If its process dies, Do never
// returned, and the write was never accepted.
//
// # The words
//
// A resource is what must not be written to by two at once. Its waiting writes
// are its lane. The fence is a number for the database to tell a late writer
// by. The idempotency key, or ID, names one intended write, and is not the
// resource. See docs/protocol.md for how it works.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
)

// OnFailure says what becomes of a lane when one of its writes fails.
type OnFailure int

const (
	// LaneWaits keeps the order: the failed write keeps its place until it
	// succeeds or has used up its attempts, and everything behind it waits.
	// Then it becomes a dead letter and the lane goes on.
	LaneWaits OnFailure = iota

	// WriteStepsAside gives up the order for the failed write: it joins the end
	// of its lane after its backoff, and the lane goes on at once.
	WriteStepsAside

	// LaneHalts is LaneWaits for a ledger that may not have a gap: when the
	// attempts are used up the lane is paused until an operator resumes it.
	LaneHalts
)

// Config says how a worker works. The zero value of a field is its default.
// What concerns the queue must be the same in every process of one Name.
type Config struct {
	// Name separates one application from another: one Name has one set of
	// locks, one queue, one Run. Required, at most 128 bytes, without braces.
	Name string

	// Batch is the most writes of one resource that are fetched at once, and
	// that a function given to WrapBatch gets at once. Default 100, at most
	// 1000.
	Batch int

	// Lookback is how long the oldest write of a lane waits before the lane is
	// looked at. It is then drained until it is empty. Longer means larger
	// batches and later writes. Default 0: as soon as the lock is free. At most
	// an hour.
	Lookback time.Duration

	// Concurrency is how many lanes Run works on at once. Default 16, at most
	// 10,000.
	Concurrency int

	// LockTTL is how long a lane waits after its holder has died, and MaxHold
	// how long one write, or one batch, may run before its lock is taken for
	// lost. Defaults 10 s and 10 minutes.
	LockTTL, MaxHold time.Duration

	// Grace is how long Run lets what is running finish when it is asked to
	// stop, before it cancels it. Default 10 s, at most an hour.
	Grace time.Duration

	// MaxAttempts is how often a write is started before it is given up.
	// Conflicts, lost locks and stops do not count. Default 25.
	MaxAttempts int

	// Backoff is how long to wait after the nth attempt has failed. Default:
	// doubling from 100 ms to a minute, with half of it at random.
	Backoff func(attempt int) time.Duration

	// OnFailure is what becomes of the lane meanwhile. Default LaneWaits.
	OnFailure OnFailure

	// DeferFailures makes a direct write that fails go to the head of its lane,
	// to be tried again; Do then reports it as deferred. By default its error
	// goes to the caller of Do. A permanent error always does, and so does every
	// one if MaxAttempts is 1.
	DeferFailures bool

	// Carry picks from the context of Do what travels with the write, such as a
	// trace or a tenant, and Restore puts it into the context of the function
	// that runs it, on the direct and on the deferred path alike. A batch is
	// given what all its writes agree on. Neither may be nil if the other is
	// not.
	Carry   func(context.Context) map[string]string
	Restore func(context.Context, map[string]string) context.Context

	// Shards, MaxPayload, MaxDepth, MaxDead, Replicas and ReplicaTimeout are
	// those of [deferral.Config].
	Shards, MaxPayload, MaxDepth, MaxDead, Replicas int
	ReplicaTimeout                                  time.Duration

	// Poll is the safety net of Run: how often, times Shards, it looks although
	// nothing told it to. Default 5 s; 100 ms to an hour.
	Poll time.Duration

	// Logger gets what an operator should see. Default slog.Default(). Payloads
	// are never logged; resources and IDs are.
	Logger *slog.Logger

	// Observe, if not nil, is called for every [Event], by the goroutine it
	// happens in: it must be quick and safe for concurrent use.
	Observe func(Event)
}

func (c Config) validate() (Config, error) {
	defaults(&c)
	bad := func(field string, v any, want string) (Config, error) {
		return c, fmt.Errorf("worker: Config.%s is %v: want %s", field, v, want)
	}
	switch {
	case c.Batch < 1 || c.Batch > deferral.MaxBatch:
		return bad("Batch", c.Batch, fmt.Sprintf("1 to %d", deferral.MaxBatch))
	case c.Lookback < 0 || c.Lookback > time.Hour:
		return bad("Lookback", c.Lookback, "0 to 1h")
	case c.Concurrency < 1 || c.Concurrency > 10_000:
		return bad("Concurrency", c.Concurrency, "1 to 10000")
	case c.Grace < 0 || c.Grace > time.Hour:
		return bad("Grace", c.Grace, "0 to 1h")
	case c.MaxAttempts < 1 || c.MaxAttempts > 1_000_000:
		return bad("MaxAttempts", c.MaxAttempts, "1 to 1000000")
	case c.OnFailure < LaneWaits || c.OnFailure > LaneHalts:
		return bad("OnFailure", int(c.OnFailure), "LaneWaits, WriteStepsAside or LaneHalts")
	case c.Poll < 100*time.Millisecond || c.Poll > time.Hour:
		return bad("Poll", c.Poll, "100ms to 1h")
	case (c.Carry == nil) != (c.Restore == nil):
		return c, errors.New("worker: Config.Carry and Config.Restore: want both or neither")
	}
	return c, nil
}

func defaults(c *Config) {
	if c.Batch == 0 {
		c.Batch = 100
	}
	if c.Concurrency == 0 {
		c.Concurrency = 16
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 25
	}
	if c.Backoff == nil {
		c.Backoff = exponential(100*time.Millisecond, time.Minute, rand.Float64)
	}
	if c.Poll == 0 {
		c.Poll = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// exponential doubles from first to most; half of each delay is at random, so
// that writes that failed together do not come back together.
func exponential(first, most time.Duration, random func() float64) func(int) time.Duration {
	return func(attempt int) time.Duration {
		d := most
		if n := max(attempt, 1) - 1; n < 32 && first<<n < most && first<<n > 0 {
			d = first << n
		}
		return d/2 + time.Duration(random()*float64(d/2))
	}
}

// Worker runs the writes of one Name. It is safe for concurrent use. Without
// Run it only submits, and has nothing to close.
type Worker struct {
	cfg   Config
	queue *deferral.Queue
	rdb   redis.UniversalClient
	log   *slog.Logger

	// mu guards kinds.
	mu    sync.RWMutex
	kinds map[string]*kind

	// left are the lanes whose next write this process cannot run.
	left left

	// busy are the lanes whose writes could not be run for now.
	busy busy

	// crew is the runners of a Run that is under way.
	crew atomic.Pointer[crew]

	// said is what was logged of late.
	said said
}

// New returns a worker that keeps its locks and its queue in rdb. It sends
// nothing.
func New(rdb redis.UniversalClient, cfg Config) (*Worker, error) {
	if rdb == nil {
		return nil, errors.New("worker: New needs a Redis client")
	}
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	q, err := deferral.New(rdb, deferral.Config{
		Name: cfg.Name, Shards: cfg.Shards, LockTTL: cfg.LockTTL, MaxHold: cfg.MaxHold,
		MaxPayload: cfg.MaxPayload, MaxDepth: cfg.MaxDepth, MaxDead: cfg.MaxDead,
		Replicas: cfg.Replicas, ReplicaTimeout: cfg.ReplicaTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	return &Worker{
		cfg: cfg, queue: q, rdb: rdb, kinds: map[string]*kind{},
		log: cfg.Logger.With("worker", cfg.Name),
	}, nil
}

// Queue is the queue of the writes that were deferred, with the operator's view
// of it.
func (w *Worker) Queue() *deferral.Queue { return w.queue }
