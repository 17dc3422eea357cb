// Package deferral is a delay queue in Redis for writes that must not run now.
// Its directory is named after Go's keyword, so import it by name:
//
//	import deferral "github.com/deferlock/deferlock/defer"
//
// It is the kaito recipe, a payload in a String and its order in a ZSET, with
// one ZSET for each resource, its lane. A write stays in its lane until it is
// acknowledged, and only the holder of the resource's lock may run what is in
// the lane, oldest first. The lock is the lease: when its holder dies it
// expires, and the lane is simply there for the next one. So
//
//   - writes to one resource are delivered one at a time, in the order in which
//     they were pushed;
//   - what was popped and not acknowledged within the lock's life is delivered
//     again;
//   - an index with one entry for each lane makes a thousand writes that wait
//     for one resource cost no more than one.
//
// Start with [New], [Queue.Push] and [Queue.Pop]. Package worker builds on
// [Queue.Admit], [Queue.Due], [Queue.Enter] and [Turn.Settle], which run
// batches of one lane without giving its lock back in between.
//
// # What is not promised
//
// Delivery is at least once: a handler that must take effect once has to check
// the write's ID and [Delivery.Fence] in its own database. How well a push is
// kept is Redis's matter and declared in [Config.Replicas]: by default a push
// is stored when the server asked has it, and a failover or a power cut can
// lose the last moments, even a planned failover under load. A write that is
// pushed for later ([Write.At], [Write.Delay]) or was put aside takes its place
// in the lane when its time has come, not before.
package deferral

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
	"github.com/deferlock/deferlock/lock"
)

var (
	// ErrInvalid is wrapped by the error for a write, an ID, a resource or a
	// number that is not allowed. Nothing was sent to Redis.
	ErrInvalid = errors.New("deferral: invalid")

	// ErrUnclear is wrapped when no reply arrived to a call that may have been
	// carried out. Repeating the call with the same ID is safe.
	ErrUnclear = script.ErrUnclear

	// ErrMismatch is returned for a write whose ID is already used on the same
	// resource by a write with another kind or payload. The one that was there
	// is untouched.
	ErrMismatch = errors.New("deferral: the ID is in use with another payload")

	// ErrDead is returned for a write that is among the dead letters. It is not
	// pushed again; revive or forget it.
	ErrDead = errors.New("deferral: the write is a dead letter")

	// ErrLaneFull is returned when the lane holds Config.MaxDepth writes.
	// Nothing was stored.
	ErrLaneFull = errors.New("deferral: the lane is full")

	// ErrNotReplicated is returned for a write that is stored, but that fewer
	// than Config.Replicas replicas acknowledged in time. It will run unless a
	// failover loses it. Repeating the call with the same ID is safe.
	ErrNotReplicated = errors.New("deferral: stored, but not replicated in time")

	// ErrShards is returned when other processes use another number of shards
	// for the same Name.
	ErrShards = errors.New("deferral: another number of shards is in use")

	// ErrNotFound is returned for a write that is nowhere in the queue.
	ErrNotFound = errors.New("deferral: no such write")

	// ErrRunning is returned when a write cannot be cancelled because it has
	// been started.
	ErrRunning = errors.New("deferral: the write is running")

	// ErrLost is returned when a delivery's lock is not its own any more: it
	// may have been delivered again.
	ErrLost = lock.ErrLost
)

// Config says how a queue is kept. The zero value of a field is its default.
type Config struct {
	// Name separates the queue of one application from that of another; the
	// same in every process. Required, at most 128 bytes, without braces.
	Name string

	// Shards spreads resources over that many slots of a Redis Cluster; the
	// same in every process, which is checked. Default 1, at most 1024.
	Shards int

	// LockTTL is how long a delivery is its receiver's unless it is extended,
	// and how long a lane waits after its holder has died. Default 10 s, at
	// least 50 ms, at most 1 h.
	LockTTL time.Duration

	// MaxHold bounds how long one delivery can be extended. Default 10 minutes;
	// at least LockTTL, at most 24 h.
	MaxHold time.Duration

	// MaxPayload is the most bytes of a payload. Default 1 MiB, at most 64 MiB:
	// a large value stalls every user of the Redis.
	MaxPayload int

	// MaxDepth is the most writes that wait in one lane; a push beyond it is
	// refused with ErrLaneFull. Default 0: any number.
	MaxDepth int

	// MaxDead is the most dead letters kept in a shard; the oldest is dropped
	// for a new one. Default 0: any number.
	MaxDead int

	// Replicas is the durability level. 0, the default, is "stored": a push
	// counts when the server asked has it. n is "replicated": a push counts
	// when n replicas have acknowledged it too. A failover to a replica that is
	// not among those n still loses it: set it to the number of replicas that
	// could be promoted, and know that nothing is accepted while one is down.
	Replicas int

	// ReplicaTimeout is how long a push waits for Replicas. Default 1 s; it
	// must be shorter than LockTTL and the client's ReadTimeout.
	ReplicaTimeout time.Duration
}

const (
	maxPayload = 64 << 20
	maxReplica = time.Minute
)

func (c Config) validate() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Shards, 1)
	def(&c.MaxPayload, 1<<20)
	if c.LockTTL == 0 {
		c.LockTTL = lock.DefaultTTL
	}
	if c.MaxHold == 0 {
		c.MaxHold = max(lock.DefaultMaxHold, c.LockTTL)
	}
	if c.ReplicaTimeout == 0 {
		c.ReplicaTimeout = time.Second
	}
	switch {
	case c.Shards < 1 || c.Shards > keyspace.MaxShards:
		return c, fmt.Errorf("deferral: Config.Shards is %d: want 1 to %d", c.Shards, keyspace.MaxShards)
	case c.LockTTL < lock.MinTTL || c.LockTTL > lock.MaxTTL:
		return c, fmt.Errorf("deferral: Config.LockTTL is %v: want %v to %v", c.LockTTL, lock.MinTTL, lock.MaxTTL)
	case c.MaxHold < c.LockTTL || c.MaxHold > lock.MaxMaxHold:
		return c, fmt.Errorf("deferral: Config.MaxHold is %v: want %v (LockTTL) to %v", c.MaxHold, c.LockTTL, lock.MaxMaxHold)
	case c.MaxPayload < 1 || c.MaxPayload > maxPayload:
		return c, fmt.Errorf("deferral: Config.MaxPayload is %d: want 1 to %d", c.MaxPayload, maxPayload)
	case c.MaxDepth < 0:
		return c, fmt.Errorf("deferral: Config.MaxDepth is %d: want 0 (any number) or more", c.MaxDepth)
	case c.MaxDead < 0:
		return c, fmt.Errorf("deferral: Config.MaxDead is %d: want 0 (any number) or more", c.MaxDead)
	case c.Replicas < 0 || c.Replicas > 16:
		return c, fmt.Errorf("deferral: Config.Replicas is %d: want 0 to 16", c.Replicas)
	case c.Replicas > 0 && c.ReplicaTimeout >= c.LockTTL:
		// A lock that is got after its life is none.
		return c, fmt.Errorf("deferral: Config.ReplicaTimeout is %v: want less than LockTTL, %v", c.ReplicaTimeout, c.LockTTL)
	case c.ReplicaTimeout < time.Millisecond || c.ReplicaTimeout > maxReplica:
		return c, fmt.Errorf("deferral: Config.ReplicaTimeout is %v: want 1ms to %v", c.ReplicaTimeout, maxReplica)
	}
	return c, nil
}

// Queue is the delay queue of one Name. It is safe for concurrent use, runs
// nothing by itself and has nothing to close.
type Queue struct {
	rdb    redis.UniversalClient
	cfg    Config
	space  *keyspace.Space
	locker *lock.Locker

	// sender takes what many goroutines do at the same time: admissions,
	// pushes, entries, settlements.
	sender *script.Sender

	// sameShards is set once Redis has confirmed the number of shards.
	sameShards atomic.Bool

	// turn rotates the shard with which Pop begins.
	turn atomic.Uint32
}

// New returns the queue that cfg.Name has in rdb. It sends nothing.
func New(rdb redis.UniversalClient, cfg Config) (*Queue, error) {
	if rdb == nil {
		return nil, errors.New("deferral: New needs a Redis client")
	}
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	space, err := keyspace.New(cfg.Name, cfg.Shards)
	if err != nil {
		return nil, fmt.Errorf("deferral: Config.%w", err)
	}
	locker, err := lock.New(rdb, lock.Config{Name: cfg.Name, Shards: cfg.Shards, TTL: cfg.LockTTL, MaxHold: cfg.MaxHold})
	if err != nil {
		return nil, err
	}
	if err := checkReadTimeout(rdb, cfg); err != nil { // after New has refused a client that is a nil pointer
		return nil, err
	}
	return &Queue{rdb: rdb, cfg: cfg, space: space, locker: locker, sender: script.NewSender(rdb)}, nil
}

// checkReadTimeout refuses a client that would give up on a reply while Redis
// still waits for its replicas: it would push again and never learn the count.
func checkReadTimeout(rdb redis.UniversalClient, cfg Config) error {
	var read time.Duration
	switch c := rdb.(type) {
	case *redis.Client:
		read = c.Options().ReadTimeout
	case *redis.ClusterClient:
		read = c.Options().ReadTimeout
	}
	if cfg.Replicas > 0 && read > 0 && read <= cfg.ReplicaTimeout {
		return fmt.Errorf("deferral: Config.ReplicaTimeout is %v: want less than the client's ReadTimeout, %v", cfg.ReplicaTimeout, read)
	}
	return nil
}

// Name returns the Name of the queue.
func (q *Queue) Name() string { return q.cfg.Name }

// Shards returns the number of shards.
func (q *Queue) Shards() int { return q.cfg.Shards }

// LockTTL returns how long a lane waits after its holder has died.
func (q *Queue) LockTTL() time.Duration { return q.cfg.LockTTL }

// Nudges returns the channels on which the queue says, in microseconds, when a
// look at [Queue.Due] is worth while. A message that is missed does no harm.
func (q *Queue) Nudges() []string {
	var names []string
	for i := range q.cfg.Shards {
		names = append(names, q.space.Shard(i).Nudge)
	}
	return names
}

// ShardOf returns the shard that keeps the lane of resource.
func (q *Queue) ShardOf(resource string) int { return q.space.Index(resource) }
