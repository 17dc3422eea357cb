package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// naive is the plain recipe, done as well as it can be: a lock with a token, a
// delay queue with its payloads in Strings and their order in a ZSET, an atomic
// pop. What goes wrong with it is not in the details.
type naive struct {
	rdb   redis.UniversalClient
	db    *pgxpool.Pool
	locks *redislock.Client
	post  func(context.Context, pgx.Tx, Credit) error
	job   *job
	say   func(line)
}

func newNaive(rdb redis.UniversalClient, db *pgxpool.Pool, j *job, say func(line)) *naive {
	return &naive{rdb: rdb, db: db, locks: redislock.New(rdb), post: poster(j.Load.Takes), job: j, say: say}
}

// submit locks the account and writes, or pushes the write.
func (n *naive) submit(ctx context.Context, c Credit) (deferred bool, err error) {
	l, err := n.locks.Obtain(ctx, n.job.Name+":lock:"+c.Account, n.job.Load.lockTTL(), nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return true, n.push(ctx, c)
	}
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.job.Load.lockTTL())
		defer cancel()
		_ = l.Release(ctx) // otherwise it expires
	}()
	return false, pgx.BeginFunc(ctx, n.db, func(tx pgx.Tx) error { return n.post(ctx, tx, c) })
}

func (n *naive) push(ctx context.Context, c Credit) error {
	payload, err := json.Marshal(c)
	if err != nil {
		return err
	}
	key := n.job.Name + ":write:" + uuid.NewString()
	if err := n.rdb.Set(ctx, key, payload, 0).Err(); err != nil {
		return err
	}
	return n.rdb.ZAdd(ctx, naiveQueue(n.job.Name), redis.Z{Score: float64(time.Now().UnixMicro()), Member: key}).Err()
}

// naiveQueue is the key of the plain recipe's queue.
func naiveQueue(name string) string { return name + ":queue" }

// naivePop returns up to num writes that were pushed before a moment, and
// removes them.
var naivePop = redis.NewScript(`
local keys = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
local payloads = {}
for i, key in ipairs(keys) do
  redis.call('ZREM', KEYS[1], key)
  payloads[i] = redis.call('GET', key)
  redis.call('DEL', key)
end
return payloads`)

// run pops writes and tries them, as many at once as deferlock would. It rests
// when it found nothing that it could do.
func (n *naive) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if n.some(ctx) == 0 {
			_ = pause(ctx, 10*time.Millisecond) // the loop looks at ctx
		}
	}
	return nil
}

// some pops some writes, tries them, and returns how many were done.
func (n *naive) some(ctx context.Context) int {
	before := strconv.FormatInt(time.Now().Add(-n.job.Load.Lookback).UnixMicro(), 10)
	payloads, err := naivePop.Run(ctx, n.rdb, []string{naiveQueue(n.job.Name)}, before, 16).StringSlice()
	if err != nil {
		return 0
	}
	var done atomic.Int64
	var all sync.WaitGroup
	for _, payload := range payloads {
		all.Go(func() {
			if n.again(ctx, payload) {
				done.Add(1)
			}
		})
	}
	all.Wait()
	return int(done.Load())
}

// again tries a write that was popped, and pushes it if it could not be done.
func (n *naive) again(ctx context.Context, payload string) (done bool) {
	var c Credit
	if err := json.Unmarshal([]byte(payload), &c); err != nil {
		return false
	}
	deferred, err := n.submit(ctx, c)
	switch {
	case err != nil:
		_ = n.push(ctx, c) // if that fails too, so be it
	case deferred:
		n.say(line{What: saidRetry})
	}
	return err == nil && !deferred
}
