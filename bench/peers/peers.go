// Package peers has the ways of doing writes one at a time that are set side by
// side, one file each. Each is done as well as it can be with the means its
// users have: what is missing is said in Lacks, not made worse.
package peers

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
)

// Env is what a peer is made of.
type Env struct {
	Redis   *redis.Client
	Name    string        // of its keys
	Work    *load.Work    // what a write does
	Refused *atomic.Int64 // counts the attempts at a lock that found it taken
}

// Kind is a way of doing writes.
type Kind struct {
	Name  string
	About string // what it is, in a line
	Lacks string // what it does not promise that deferlock does
	New   func(Env) (load.Peer, error)
}

// The kinds. Redislock is what the others are set beside.
var (
	Ping = Kind{
		Name:  "2 PINGs",
		About: "two PINGs around the work, and no lock: what the client and the network give to anything that takes two round trips",
		Lacks: "everything",
		New:   newPing,
	}
	Bare = Kind{
		Name:  "SET NX",
		About: "`SET NX PX` and a compare-and-delete script through go-redis; while the lock is taken the caller tries again each millisecond",
		Lacks: "the caller waits; order is luck; a write whose process dies is gone; a holder that was paused writes late",
		New:   newBare,
	}
	Redislock = Kind{
		Name:  "redislock",
		About: "redislock's Obtain and Release; while the lock is taken Obtain tries again each millisecond",
		Lacks: "the caller waits; order is luck; a write whose process dies is gone; a holder that was paused writes late",
		New:   newRedislock,
	}
	Kaito = Kind{
		Name:  "kaito",
		About: "the plain recipe on redislock: lock, push on conflict, pop 5 of any age; up to 16 at once; when nothing was popped, a rest of 10 ms",
		Lacks: "newer writes overtake deferred ones; a pop is lost when its process dies; a holder that was paused writes late",
		New:   newKaito(0),
	}
	Kaito3 = Kind{
		Name:  "kaito 3 s",
		About: "the same, but pop only what was pushed 3 s ago",
		Lacks: Kaito.Lacks,
		New:   newKaito(3 * time.Second),
	}
	Asynq = Kind{
		Name: "asynq",
		About: "a task a write, with a redislock lock in the handler and a retry on conflict that is not counted; 16 at once; " +
			"it looks for tasks every 10 ms and for retries every 100 ms (by default 1 s and 5 s)",
		Lacks: "no write is done by the call; newer writes overtake those that are tried again; a holder that was paused writes late",
		New:   newAsynq,
	}
	Delayqueue = Kind{
		Name: "delayqueue",
		About: "a message a write through HDT3213/delayqueue, with a redislock lock in the consumer and a retry on conflict, which counts but never runs out; " +
			"16 at once; it looks every 10 ms (by default 1 s)",
		Lacks: "no write is done by the call; newer writes overtake those that are tried again; a message goes after an hour; a holder that was paused writes late",
		New:   newDelayqueue,
	}
	Deferlock = Kind{
		Name:  "deferlock",
		About: "worker.Do and worker.Run with the defaults: 16 lanes at once, batches of 100, lookback 0",
		Lacks: "",
		New:   newDeferlock,
	}
)

// All are the kinds in the order in which they are shown.
var All = []Kind{Ping, Bare, Redislock, Kaito, Kaito3, Asynq, Delayqueue, Deferlock}

// atOnce is how many deferred writes a peer does at a time.
const atOnce = 16

// lockLife is the TTL of all locks.
const lockLife = 10 * time.Second

// retryAfter is how long who waits for a lock waits between two attempts.
const retryAfter = time.Millisecond

// token returns 22 random characters, as many as redislock's tokens have.
func token() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	var b [22]byte
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b[:])
}
