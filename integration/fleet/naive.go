package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/worker"
)

// naive is a process that works by the plain recipe: it takes a lock, pushes the
// write when it is taken, and pops what was pushed and tries again. It has the
// holes that deferlock closes: newer writes overtake, order is that of the
// processes' clocks, pop deletes before the write has run, SET and ZADD are two
// steps, and nobody renews a lock.
func (p *child) naive(ctx context.Context, rdb redis.UniversalClient, db *pgxpool.Pool) error {
	n := &naive{
		child: p, rdb: rdb, locks: redislock.New(rdb),
		f: &function{spec: p.spec, db: db, say: p.say, gates: p.gates},
	}
	p.say.say(record{Event: saidUp})
	var running sync.WaitGroup
	if p.spec.Run {
		for range cmp.Or(p.spec.Concurrency, 4) {
			running.Go(func() { n.popping(ctx) })
		}
	}
	if p.spec.Submit != nil {
		n.submitting(ctx)
	}
	p.say.say(record{Event: saidQuiet})
	<-ctx.Done()
	running.Wait()
	return nil
}

type naive struct {
	*child
	rdb   redis.UniversalClient
	locks *redislock.Client
	f     *function
}

func (n *naive) key(kind string) string { return "naive:" + n.spec.Name + ":" + kind }

// payload is the key of a write's String: deferlock's own, so that the audit of
// the keys sees what is left of it.
func (n *naive) payload(w Write) string {
	return "{" + n.spec.Name + ":0}:write:" + keyspace.Ref(w.Resource, w.ID)
}

// ttl is the life of the process's locks.
func (n *naive) ttl() time.Duration { return cmp.Or(n.spec.LockTTL, defaultTTL) }

// naiveQueue is the key of what was pushed.
func naiveQueue(name string) string { return "naive:" + name + ":queue" }

func (n *naive) submitting(ctx context.Context) {
	var running sync.WaitGroup
	for g := range max(n.spec.Submit.Goroutines, 1) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(n.spec.Submit.Seed, uint64(g)))
			for i := 0; n.spec.Submit.Writes == 0 || i < n.spec.Submit.Writes; i++ {
				select {
				case <-n.quiet:
					return
				default:
				}
				w := Write{
					Resource: "r" + strconv.Itoa(random.IntN(max(n.spec.Submit.Resources, 1))),
					ID:       fmt.Sprintf("%s-%d-%d", n.spec.Process, g, i), Payload: fmt.Sprintf("%016x", random.Uint64()),
				}
				n.say.say(record{Event: saidCall, ID: w.ID, Resource: w.Resource, Payload: w.Payload})
				outcome := "accepted"
				if err := n.submit(ctx, w, random.IntN(100) < n.spec.Submit.Push); err != nil {
					outcome = "unknown"
				}
				n.say.say(record{Event: saidReturn, ID: w.ID, Resource: w.Resource, Outcome: outcome})
				rest(n.quiet, n.spec.Submit.Pause)
			}
		})
	}
	running.Wait()
}

// submit pushes a write, or runs it if it can, and does so once more if that
// fails.
func (n *naive) submit(ctx context.Context, w Write, push bool) error {
	do := n.do
	if push {
		do = n.push
	}
	if err := do(ctx, w); err == nil {
		return nil
	}
	return do(ctx, w)
}

// do runs a write under the lock, or pushes it.
func (n *naive) do(ctx context.Context, w Write) error {
	l, err := n.locks.Obtain(ctx, n.key("lock:"+w.Resource), n.ttl(), nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return n.push(ctx, w)
	}
	if err != nil {
		return err
	}
	defer n.release(context.WithoutCancel(ctx), l)
	in := worker.Info{Name: n.spec.Name, ID: w.ID, Resource: w.Resource, Fence: time.Now().UnixMicro()}
	return n.f.one(worker.NewContext(ctx, in), w)
}

// release gives a lock back: by its token, or, if that is the fault, by its name
// alone.
func (n *naive) release(ctx context.Context, l *redislock.Lock) {
	n.gates.pass("before release")
	if n.spec.Plant == PlantRelease {
		_ = n.rdb.Del(ctx, l.Key()).Err() // it ends by itself
		return
	}
	_ = l.Release(ctx) // likewise
}

// push stores a write and then puts it into the queue. Whether a write is there
// already it sees by the String.
func (n *naive) push(ctx context.Context, w Write) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	set, err := n.rdb.SetNX(ctx, n.payload(w), text, 0).Result()
	if err != nil || !set {
		return err
	}
	n.gates.pass("before zadd")
	score := float64(time.Now().UnixMicro())
	return n.rdb.ZAdd(ctx, naiveQueue(n.spec.Name), redis.Z{Score: score, Member: n.payload(w)}).Err()
}

// popping pops and runs until ctx ends, and then finishes what it has in hand.
func (n *naive) popping(ctx context.Context) {
	for end := ctx.Done(); ctx.Err() == nil; {
		if !n.popOne(context.WithoutCancel(ctx)) {
			rest(end, 5*time.Millisecond)
		}
	}
}

// popOne reports whether there was anything.
func (n *naive) popOne(ctx context.Context) bool {
	got, err := n.rdb.ZPopMin(ctx, naiveQueue(n.spec.Name), 1).Result()
	if err != nil || len(got) == 0 {
		return false
	}
	payload, _ := got[0].Member.(string)
	text, err := n.rdb.GetDel(ctx, payload).Bytes()
	var w Write
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	if err == nil {
		_ = n.do(ctx, w) // what failed is lost
	}
	return true
}
