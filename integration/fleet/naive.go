package fleet

import (
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

	"github.com/deferlock/deferlock/worker"
)

// naive is a process that works by the plain recipe: it takes a lock, pushes the
// write when it is taken, and pops what was pushed and tries again. It has the
// holes that deferlock closes: newer writes overtake, order is that of the
// processes' clocks, pop deletes before the write has run, and SET and ZADD are
// two steps.
func (p *child) naive(ctx context.Context, rdb redis.UniversalClient, db *pgxpool.Pool) error {
	n := &naive{
		child: p, rdb: rdb, locks: redislock.New(rdb),
		f: &function{spec: p.spec, db: db, say: p.say, gates: p.gates},
	}
	p.say.say(record{Event: saidUp})
	var running sync.WaitGroup
	if p.spec.Run {
		for range 4 {
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
				if err := n.do(ctx, w); err != nil {
					outcome = "unknown"
				}
				n.say.say(record{Event: saidReturn, ID: w.ID, Resource: w.Resource, Outcome: outcome})
				rest(n.quiet, n.spec.Submit.Pause)
			}
		})
	}
	running.Wait()
}

// do runs a write under the lock, or pushes it.
func (n *naive) do(ctx context.Context, w Write) error {
	l, err := n.locks.Obtain(ctx, n.key("lock:"+w.Resource), defaultTTL, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return n.push(ctx, w)
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Release(context.WithoutCancel(ctx)) }()
	in := worker.Info{Name: n.spec.Name, ID: w.ID, Resource: w.Resource, Fence: time.Now().Add(n.spec.Skew).UnixMicro()}
	return n.f.one(worker.NewContext(ctx, in), w)
}

func (n *naive) push(ctx context.Context, w Write) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if err := n.rdb.Set(ctx, n.key(w.ID), text, 0).Err(); err != nil {
		return err
	}
	score := float64(time.Now().Add(n.spec.Skew).UnixMicro())
	return n.rdb.ZAdd(ctx, naiveQueue(n.spec.Name), redis.Z{Score: score, Member: w.ID}).Err()
}

func (n *naive) popping(ctx context.Context) {
	for ctx.Err() == nil {
		got, err := n.rdb.ZPopMin(ctx, naiveQueue(n.spec.Name), 1).Result()
		if err != nil || len(got) == 0 {
			rest(ctx.Done(), 5*time.Millisecond)
			continue
		}
		id, _ := got[0].Member.(string)
		text, err := n.rdb.GetDel(ctx, n.key(id)).Bytes()
		var w Write
		if err == nil {
			err = json.Unmarshal(text, &w)
		}
		if err == nil {
			_ = n.do(ctx, w) // what failed is lost
		}
	}
}
