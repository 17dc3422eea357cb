package fleet

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// Spec says what a process does. It travels to the process as JSON.
type Spec struct {
	// Process names it in records. The fleet sets it, and Name, Redis and
	// Postgres too unless they are set.
	Process  string
	Name     string
	Redis    Target
	Postgres string

	// Run makes it work the queue.
	Run bool

	// Submit is what it submits; nil: nothing.
	Submit *Load

	// What is handed on to worker.Config. Zero is the library's default, but for
	// LockTTL, which is then half a second.
	LockTTL, MaxHold, Grace, Lookback, Poll time.Duration
	ReplicaTimeout                          time.Duration // default 100 ms
	Batch, Concurrency, MaxAttempts         int
	Shards, Replicas, MaxDepth, OnFailure   int
	DeferFailures                           bool

	// Think is how long a function takes: a half before its transaction and a
	// half inside.
	Think time.Duration

	// Patient leaves the time between two attempts to the library. By default it
	// is short, so that tests need not wait.
	Patient bool

	// Kind is that of the writes. Default "write".
	Kind string

	// Batches makes the function take many writes at once.
	Batches bool

	// Deaf makes the function go on when its context has ended, like one that is
	// on its way to the database already.
	Deaf bool

	// Plant makes the process break a promise, so that the checks can be seen to
	// find it: one of the Plant constants.
	Plant string

	// Clock is how far the wall clock of the process is off, in whole seconds: all
	// that it is told of the time, by whatever way it asks.
	Clock time.Duration

	// Gate is where the process stops.
	Gate Gate

	// Lose are replies that the process does not get: each Every-th to a step
	// ("admit", "push", "take", "claim", "leave", "refresh", "commit").
	Lose []Loss

	// PoolSize is the Redis client's, and ReadTimeout too; 0: its default.
	PoolSize    int
	ReadTimeout time.Duration
}

// Target is where a process finds its Redis.
type Target struct {
	Addrs              []string
	Master             string // a Sentinel's name for it; Addrs are Sentinels then
	Cluster            bool
	Username, Password string
}

// Gate is a step at which a process stops, the Nth time it comes there.
type Gate struct {
	At  string
	Nth int // 0: the first time
}

// Loss is a reply that is lost every so often.
type Loss struct {
	Step  string
	Every int
}

// Load is what a process submits.
type Load struct {
	Resources  int // on which the writes are
	Goroutines int // which submit one after the other; 0: one
	Writes     int // of each goroutine; 0: until told to be quiet
	Seed       uint64

	// Pause is how long a goroutine rests between two writes.
	Pause time.Duration

	// Timeout is each call's. Default 5 s.
	Timeout time.Duration

	// Push is how many of 100 writes are pushed, and Later how many of 100 of
	// those for later. Twice is how many of 100 accepted writes are submitted
	// again.
	Push, Later, Twice int

	// Misbehave is what the function does when it is first called for a write,
	// for each Every-th write: "fail", "panic", "goexit", "stall" (until its
	// context ends), "block" (for ten lives of a lock) or "poison", which fails
	// whenever it is called.
	Misbehave string
	Every     int

	// Pad makes payloads longer by so many bytes.
	Pad int

	// Once submits each write only once, whatever the answer.
	Once bool
}

// Single is a Redis by itself.
func Single(addr string) Target { return Target{Addrs: []string{addr}} }

// client makes the Redis client of a process or of the fleet itself.
func (t Target) client(change func(*redis.UniversalOptions)) redis.UniversalClient {
	opts := &redis.UniversalOptions{
		Addrs: t.Addrs, MasterName: t.Master, IsClusterMode: t.Cluster, Username: t.Username, Password: t.Password,
		ContextTimeoutEnabled: true, DialTimeout: time.Second,
	}
	if change != nil {
		change(opts)
	}
	if t.Cluster {
		cluster := opts.Cluster()
		cluster.ClusterStateReloadInterval = time.Second // or it can stay on a dead node for almost a minute
		return redis.NewClusterClient(cluster)
	}
	return redis.NewUniversalClient(opts)
}
