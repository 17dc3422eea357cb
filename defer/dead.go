package deferral

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// How much of the dead letters one step brings.
const (
	deadPage  = 100
	deadBytes = 4 << 20
)

// Dead goes through the dead letters, the oldest first within each shard. It
// returns those that were dead when it began and still are when their turn
// comes; reviving and forgetting them on the way is safe. They come in steps of
// up to 100 letters or 4 MiB, so Redis is not held up and no more is kept in
// memory. After an error it ends.
func (q *Queue) Dead(ctx context.Context) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for page, err := range q.graves(ctx, q.allShards()) {
			for len(page.refs) > 0 && err == nil {
				var letters []Item
				letters, page.refs, err = q.letters(ctx, page.shard, page.refs)
				for _, it := range letters {
					if !yield(it, nil) {
						return
					}
				}
			}
			if err != nil {
				yield(Item{}, fmt.Errorf("deferral: list dead letters: %w", err))
				return
			}
		}
	}
}

// Revive puts a dead letter back into the queue as if it had never been
// started. It joins the end of its lane: writes to the resource that were
// pushed after it may have run, and those that wait will run before it. It is
// taken in even if the lane is full. The error is [ErrNotFound] when it is not a
// dead letter, or when its payload is gone; then it no longer is one.
func (q *Queue) Revive(ctx context.Context, resource, id string) error {
	code, repeated, err := q.operate(ctx, reviveScript, resource, id)
	switch {
	case err != nil:
		return fmt.Errorf("deferral: revive %q: %w", id, err)
	case code == -1:
		return fmt.Errorf("%w: the payload of %q is gone", ErrNotFound, id)
	case code == 0:
		return missing(id, repeated)
	}
	return nil
}

// ReviveAll revives the letters that are dead when it begins, each as
// [Queue.Revive] does and in the order in which they were buried, and says how
// many. It takes one round trip for each. With an error, those that are counted
// are revived all the same.
func (q *Queue) ReviveAll(ctx context.Context) (int, error) {
	return q.reviveIf(ctx, q.allShards(), func(string) bool { return true })
}

// ReviveResource is [Queue.ReviveAll] for the dead letters of one resource. To
// find them it goes through the names of all dead letters in the shard.
func (q *Queue) ReviveResource(ctx context.Context, resource string) (int, error) {
	if err := keyspace.CheckResource(resource); err != nil {
		return 0, fmt.Errorf("%w: resource %w", ErrInvalid, err)
	}
	of := func(r string) bool { return r == resource }
	return q.reviveIf(ctx, []*keyspace.Shard{q.space.Of(resource)}, of)
}

// Forget deletes a dead letter for good. The error is [ErrNotFound] when there
// is no such dead letter.
func (q *Queue) Forget(ctx context.Context, resource, id string) error {
	code, repeated, err := q.operate(ctx, forgetScript, resource, id)
	switch {
	case err != nil:
		return fmt.Errorf("deferral: forget %q: %w", id, err)
	case code == 0:
		return missing(id, repeated)
	}
	return nil
}

func (q *Queue) reviveIf(ctx context.Context, shards []*keyspace.Shard, wanted func(resource string) bool) (n int, err error) {
	for page, err := range q.graves(ctx, shards) {
		if err != nil {
			return n, fmt.Errorf("deferral: revive: %w", err)
		}
		for _, ref := range page.refs {
			resource, id := keyspace.Split(ref)
			if !wanted(resource) {
				continue
			}
			code, repeated, err := q.operate(ctx, reviveScript, resource, id)
			if err != nil {
				return n, fmt.Errorf("deferral: revive %q: %w", id, err)
			}
			if code == 1 || code == 0 && repeated {
				n++
			}
		}
	}
	return n, nil
}

// page is some dead letters of one shard.
type page struct {
	shard *keyspace.Shard
	refs  []string
}

// graves goes through the names of the dead letters of some shards, the oldest
// first, as they are when it comes to the shard.
func (q *Queue) graves(ctx context.Context, shards []*keyspace.Shard) iter.Seq2[page, error] {
	return func(yield func(page, error) bool) {
		if err := q.agree(ctx); err != nil {
			yield(page{}, err)
			return
		}
		for _, h := range shards {
			for refs, err := range q.gravesOf(ctx, h) {
				if !yield(page{shard: h, refs: refs}, err) || err != nil {
					return
				}
			}
		}
	}
}

// gravesOf reads the dead letters of a shard from the moment of the last one it
// saw, not from a rank: what is revived on the way changes the ranks of all
// that follow. Several may have died in the same moment, so it remembers those
// of that moment. Only what died before it began counts, or it might never end.
func (q *Queue) gravesOf(ctx context.Context, h *keyspace.Shard) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		now, _, _, err := q.readLetters(ctx, h, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		window := redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(now, 10)}
		var moment float64
		seen := map[string]bool{}
		for {
			window.Count = int64(deadPage + len(seen))
			found, err := q.rdb.ZRangeByScoreWithScores(ctx, h.Dead, &window).Result()
			var refs []string
			for _, z := range found {
				ref, _ := z.Member.(string)
				if seen[ref] {
					continue
				}
				if z.Score != moment {
					moment = z.Score
					clear(seen)
				}
				seen[ref] = true
				refs = append(refs, ref)
			}
			if !yield(refs, err) || err != nil || int64(len(found)) < window.Count {
				return
			}
			window.Min = strconv.FormatFloat(moment, 'f', -1, 64)
		}
	}
}

// letters reads dead letters, and returns the names of those that it has not
// come to.
func (q *Queue) letters(ctx context.Context, h *keyspace.Shard, refs []string) ([]Item, []string, error) {
	now, n, rows, err := q.readLetters(ctx, h, refs)
	if err != nil {
		return nil, nil, err
	}
	var items []Item
	for i := range n {
		row := listAt(rows, i)
		if stringAt(row, 0) == "" {
			continue // no dead letter any more
		}
		resource, id := keyspace.Split(refs[i])
		it := Item{Write: Write{ID: id, Resource: resource}}
		it.bury(intAt(row, 0), now, stringAt(row, 1))
		it.open(row[2])
		items = append(items, it)
	}
	return items, refs[n:], nil
}

// readLetters runs letters.lua: the queue's clock, and a row for each of the
// first n of refs.
func (q *Queue) readLetters(ctx context.Context, h *keyspace.Shard, refs []string) (now int64, n int, rows []any, err error) {
	args := []any{h.Prefix, deadBytes}
	for _, ref := range refs {
		args = append(args, ref)
	}
	r, err := script.Run(ctx, q.rdb, lettersScript, []string{h.Dead, h.Graves, h.Clock}, args...)
	if err != nil {
		return 0, 0, nil, err
	}
	now, v := codeOf(r.Value)
	rows = v[min(1, len(v)):]
	return now, min(len(rows), len(refs)), rows, nil
}
