package deferral

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
)

// scanCount is how many keys or members Redis looks at in one step.
const scanCount = 500

// agree refuses to look at a queue whose processes use another number of
// shards. Unlike ensure it leaves nothing behind: who only looks must not
// decide for those who come to work.
func (q *Queue) agree(ctx context.Context) error {
	if q.sameShards.Load() {
		return nil
	}
	theirs, err := q.rdb.Get(ctx, q.space.ShardsKey()).Int()
	switch {
	case errors.Is(err, redis.Nil):
		return nil // nothing was ever pushed
	case err != nil:
		return fmt.Errorf("read the number of shards: %w", err)
	case theirs != q.cfg.Shards:
		return fmt.Errorf("%w: %d, Config.Shards is %d", ErrShards, theirs, q.cfg.Shards)
	}
	q.sameShards.Store(true)
	return nil
}

// allShards returns the shards in their order.
func (q *Queue) allShards() []*keyspace.Shard {
	shards := make([]*keyspace.Shard, q.cfg.Shards)
	for i := range shards {
		shards[i] = q.space.Shard(i)
	}
	return shards
}

// node is a server and the shards that it keeps.
type node struct {
	rdb    *redis.Client
	shards []int
}

// nodes returns the servers that keep the queue: on a cluster the masters that
// own its slots, otherwise the only one.
func (q *Queue) nodes(ctx context.Context) ([]node, error) {
	var nodes []node
	for i := range q.cfg.Shards {
		rdb, err := nodeOf(ctx, q.rdb, q.space.Shard(i).Prefix)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(nodes, func(n node) bool { return n.rdb == rdb })
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, node{rdb: rdb})
		}
		nodes[at].shards = append(nodes[at].shards, i)
	}
	return nodes, nil
}

// nodeOf returns a client of the server that keeps key.
func nodeOf(ctx context.Context, rdb redis.UniversalClient, key string) (*redis.Client, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Ring:
		return c.GetShardClientForKey(key)
	}
	return nil, fmt.Errorf("%w: a %T does not tell which server keeps a key", ErrInvalid, rdb)
}

// foundKey is a key of this queue: what comes after its shard's prefix.
type foundKey struct {
	shard *keyspace.Shard
	rest  string
}

// keys goes through the keys of the queue whose rest matches a glob pattern, in
// no order; one may come more than once. After an error it ends.
func (q *Queue) keys(ctx context.Context, pattern string) iter.Seq2[foundKey, error] {
	return func(yield func(foundKey, error) bool) {
		nodes, err := q.nodes(ctx)
		if err != nil {
			yield(foundKey{}, err)
			return
		}
		for _, n := range nodes {
			for step, err := range n.scan(ctx, q.match(n)+pattern) {
				if err != nil {
					yield(foundKey{}, err)
					return
				}
				for _, text := range step {
					if key, ok := q.parseKey(text); ok && !yield(key, nil) {
						return
					}
				}
			}
		}
	}
}

// match is the pattern for what the keys of a node begin with.
func (q *Queue) match(n node) string {
	if len(n.shards) == 1 {
		return escape(q.space.Shard(n.shards[0]).Prefix)
	}
	return escape("{"+q.cfg.Name+":") + "*}:"
}

// scan goes through the node's keys in steps.
func (n node) scan(ctx context.Context, match string) iter.Seq2[[]string, error] {
	return steps(func(cursor uint64) *redis.ScanCmd { return n.rdb.Scan(ctx, cursor, match, scanCount) })
}

// steps repeats one of Redis's SCAN commands until it has been all around.
func steps(scan func(cursor uint64) *redis.ScanCmd) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for cursor := uint64(0); ; {
			found, next, err := scan(cursor).Result()
			if !yield(found, err) || err != nil || next == 0 {
				return
			}
			cursor = next
		}
	}
}

// evens are the members in what ZSCAN and HSCAN return, member and value in turn.
func evens(pairs []string) []string {
	out := make([]string, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, pairs[i])
	}
	return out
}

// parseKey takes a key of this queue apart. It is false for a key of another
// queue, though its Name may begin like ours.
func (q *Queue) parseKey(key string) (foundKey, bool) {
	tail, ours := strings.CutPrefix(key, "{"+q.cfg.Name+":")
	tag, rest, cut := strings.Cut(tail, "}:")
	i, err := strconv.Atoi(tag)
	if !ours || !cut || err != nil || i < 0 || i >= q.cfg.Shards || strconv.Itoa(i) != tag {
		return foundKey{}, false
	}
	return foundKey{shard: q.space.Shard(i), rest: rest}, true
}

// escape makes a glob pattern that matches s and nothing else.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(`*?[]\`, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
