package deferral

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
)

// Stats is what waits in a queue.
type Stats struct {
	Counts // of the whole queue

	// Shards has the counts of each shard.
	Shards []Counts
}

// Counts is what waits in a queue, or in one shard of it.
type Counts struct {
	Waiting int // writes in lanes, those that are running included
	Lanes   int // lanes in which writes wait
	Due     int // lanes that could be started now: neither locked nor paused nor resting, whatever the lookback
	Running int // lanes in which writes wait and whose lock is held
	Later   int // writes put aside until their time has come
	Dead    int // dead letters
	Paused  int // lanes that are paused, with or without writes

	// Oldest is how long ago the oldest of the lanes' heads was pushed.
	Oldest time.Duration
}

// Stats counts what waits. It goes through all lanes as [Queue.Lanes] does, so
// it takes time and traffic in proportion to the lanes, but not to the writes
// in them, and Redis is not held up: three commands for each shard, and two
// round trips for every 500 lanes. The counts of lanes belong to different
// moments.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	if err := q.agree(ctx); err != nil {
		return Stats{}, fmt.Errorf("deferral: count: %w", err)
	}
	s := Stats{Shards: make([]Counts, q.cfg.Shards)}
	for i := range s.Shards {
		if err := q.count(ctx, q.space.Shard(i), &s.Shards[i]); err != nil {
			return Stats{}, fmt.Errorf("deferral: count: %w", err)
		}
		s.add(s.Shards[i])
	}
	return s, nil
}

// count counts what waits in one shard.
func (q *Queue) count(ctx context.Context, h *keyspace.Shard, c *Counts) error {
	var later, dead, paused *redis.IntCmd
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		later, dead, paused = p.ZCard(ctx, h.Later), p.ZCard(ctx, h.Dead), p.HLen(ctx, h.Paused)
		return nil
	})
	if err != nil {
		return err
	}
	c.Later, c.Dead, c.Paused = int(later.Val()), int(dead.Val()), int(paused.Val())
	for l, err := range q.lanesOf(ctx, h) {
		switch {
		case err != nil:
			return err
		case l.Depth == 0:
			continue
		case l.HeldFor != 0:
			c.Running++
		case !l.Paused && l.Rest == 0:
			c.Due++
		}
		c.Lanes++
		c.Waiting += l.Depth
		c.Oldest = max(c.Oldest, l.Oldest)
	}
	return nil
}

func (c *Counts) add(d Counts) {
	c.Waiting += d.Waiting
	c.Lanes += d.Lanes
	c.Due += d.Due
	c.Running += d.Running
	c.Later += d.Later
	c.Dead += d.Dead
	c.Paused += d.Paused
	c.Oldest = max(c.Oldest, d.Oldest)
}
