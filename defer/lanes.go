package deferral

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// MaxDeepest is the most lanes that [Queue.Deepest] returns.
const MaxDeepest = 10_000

// Lane is the writes that wait for one resource, as an operator sees them.
type Lane struct {
	// Name is what Pause, Resume, Free and Enter take: the resource, or for a
	// write that stands alone a name that no resource can have.
	Name string

	// Resource is "" for a write that stands alone; ID is that write then, and
	// "" otherwise.
	Resource string
	ID       string

	// Depth is how many writes wait, those that are running included.
	Depth int

	// Oldest is how long ago the write at the lane's head was pushed.
	Oldest time.Duration

	// HeldFor is how long the lane's lock still lives if it is not renewed:
	// 0 when it is not locked, negative when the lock has no end. No holder of
	// ours leaves such a lock; [Queue.Free] removes it.
	HeldFor time.Duration

	// Attempts is how often the head was started, Cause why it failed last, and
	// Rest for how long it must not be started again.
	Attempts int
	Cause    string
	Rest     time.Duration

	// Paused says that nothing of the lane starts, and Reason why.
	Paused bool
	Reason string
}

// Lanes goes through the lanes in which writes wait, and those that are paused,
// in no order. Each is returned at most once; one that is not empty from the
// beginning to the end is returned. What it says of a lane was true when the
// lane was looked at. After an error it ends.
//
// Redis looks at 500 lanes in a step of two round trips and is not held up. To
// return no lane twice Lanes remembers a hash of 64 bits of each, which for a
// million lanes is some 40 MB; ending the loop early saves the rest. A resource
// that is locked while nothing waits for it has no lane.
func (q *Queue) Lanes(ctx context.Context) iter.Seq2[Lane, error] {
	return func(yield func(Lane, error) bool) {
		if err := q.agree(ctx); err != nil {
			yield(Lane{}, fmt.Errorf("deferral: list lanes: %w", err))
			return
		}
		for i := range q.cfg.Shards {
			for l, err := range q.lanesOf(ctx, q.space.Shard(i)) {
				if !yield(l, err) || err != nil {
					return
				}
			}
		}
	}
}

// Deepest returns the n lanes in which most writes wait, the deepest first. It
// costs what [Queue.Lanes] costs and keeps no more than 2n lanes in memory; n
// is at most [MaxDeepest].
func (q *Queue) Deepest(ctx context.Context, n int) ([]Lane, error) {
	if n < 1 || n > MaxDeepest {
		return nil, fmt.Errorf("%w: Deepest's n is %d: want 1 to %d", ErrInvalid, n, MaxDeepest)
	}
	var best []Lane
	trim := func() {
		slices.SortFunc(best, func(a, b Lane) int {
			return cmp.Or(cmp.Compare(b.Depth, a.Depth), strings.Compare(a.Name, b.Name))
		})
		best = best[:min(n, len(best))]
	}
	for l, err := range q.Lanes(ctx) {
		if err != nil {
			return nil, err
		}
		if l.Depth > 0 {
			best = append(best, l)
		}
		if len(best) == 2*n {
			trim()
		}
	}
	trim()
	return best, nil
}

// lanesOf is Lanes for one shard.
func (q *Queue) lanesOf(ctx context.Context, h *keyspace.Shard) iter.Seq2[Lane, error] {
	due := steps(func(cursor uint64) *redis.ScanCmd { return q.rdb.ZScan(ctx, h.Due, cursor, "", scanCount) })
	paused := steps(func(cursor uint64) *redis.ScanCmd { return q.rdb.HScan(ctx, h.Paused, cursor, "", scanCount) })
	return func(yield func(Lane, error) bool) {
		seen, seed := map[uint64]struct{}{}, maphash.MakeSeed()
		known := func(name string) bool {
			sum := maphash.String(seed, name)
			_, known := seen[sum]
			seen[sum] = struct{}{}
			return known
		}
		for _, walk := range []iter.Seq2[[]string, error]{due, paused} {
			for pairs, err := range walk {
				var lanes []Lane
				if err == nil {
					lanes, err = q.survey(ctx, h, slices.DeleteFunc(evens(pairs), known))
				}
				if err != nil {
					yield(Lane{}, fmt.Errorf("deferral: list lanes: %w", err))
					return
				}
				for _, l := range lanes {
					if !yield(l, nil) {
						return
					}
				}
			}
		}
	}
}

// survey looks at some lanes of a shard. Those that are empty and not paused
// are left out: they have been drained since.
func (q *Queue) survey(ctx context.Context, h *keyspace.Shard, names []string) ([]Lane, error) {
	var lanes []Lane
	for some := range slices.Chunk(names, scanCount) { // a small index comes in one piece
		args := make([]any, 0, 1+len(some))
		args = append(args, h.Prefix)
		for _, name := range some {
			args = append(args, name)
		}
		r, err := script.Run(ctx, q.rdb, surveyScript, []string{h.Clock, h.Tries, h.Paused}, args...)
		if err != nil {
			return nil, err
		}
		now, v := codeOf(r.Value)
		for i, name := range some {
			if l := newLane(name, now, listAt(v, i+1)); l.Depth > 0 || l.Paused {
				lanes = append(lanes, l)
			}
		}
	}
	return lanes, nil
}

// newLane reads what survey.lua says of one lane.
func newLane(name string, now int64, v []any) Lane {
	l := Lane{Name: name, Resource: keyspace.ResourceOf(name), Depth: int(intAt(v, 0))}
	if l.Resource == "" {
		_, l.ID = keyspace.Split(name)
	}
	if l.Depth > 0 {
		t := readTries(stringAt(v, 3), intAt(v, 2))
		l.Attempts, l.Cause = t.starts, t.cause
		l.Oldest, l.Rest = max(micros(now-t.first), 0), max(micros(t.rest-now), 0)
	}
	switch life := intAt(v, 4); {
	case life >= 0:
		l.HeldFor = time.Duration(max(life, 1)) * time.Millisecond
	case life == -1:
		l.HeldFor = -1
	}
	if len(v) > 5 {
		l.Reason, l.Paused = v[5].(string)
	}
	return l
}
