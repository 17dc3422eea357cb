package deferral

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

const (
	// inspectAtOnce is how many keys one script judges, and inspectDepth how
	// many writes of a lane it looks at; a deeper lane is gone through in steps.
	inspectAtOnce = 200
	inspectDepth  = 16

	// maxExamples is how many names a finding about keys gives.
	maxExamples = 5
)

// What inspect.lua reports.
const (
	endlessLock = iota + 1
	laneNotIndexed
	payloadWithoutPlace
	placeWithoutPayload
	laneTooLong
)

// suspect is a key, or a member of one, that inspect.lua is to judge: its kind
// and name.
type suspect struct{ kind, name string }

// tally counts what is wrong in one way, with the first few names.
type tally struct {
	n        int
	examples []string
}

// keyCheck goes through the keys of a queue.
type keyCheck struct {
	q       *Queue
	pending map[*keyspace.Shard][]suspect
	found   map[int64]*tally
}

// keys looks for keys that do not fit together. Each is judged with all that
// belongs to it in one script, so that work going on is not taken for a fault.
func (c *checkup) keys(ctx context.Context) error {
	k := &keyCheck{q: c.q, pending: map[*keyspace.Shard][]suspect{}, found: map[int64]*tally{}}
	if err := k.run(ctx); err != nil {
		return c.refused("the keys of the queue", err)
	}
	for _, code := range slices.Sorted(maps.Keys(k.found)) {
		t := k.found[code]
		names := strings.Join(t.examples, ", ")
		if t.n > len(t.examples) {
			names += " and others"
		}
		switch code {
		case endlessLock:
			c.add(Problem, CodeEndlessLock, "%d locks have no end, so nothing runs in their lanes: %s; Free removes them", t.n, names)
		case laneNotIndexed:
			c.add(Problem, CodeNotIndexed, "%d lanes are not in the index, so nobody looks at them until the next write comes: %s; "+
				"Resume puts a lane back", t.n, names)
		case payloadWithoutPlace:
			c.add(Warning, CodeStrayPayload, "%d payloads belong to no write and only take memory: %s", t.n, names)
		case placeWithoutPayload:
			c.add(Problem, CodeMissingPayload, "the payload of %d writes is gone, so they cannot run: %s; something other than "+
				"this package removed it", t.n, names)
		}
	}
	return nil
}

func (k *keyCheck) run(ctx context.Context) error {
	for key, err := range k.q.keys(ctx, "*") {
		if err != nil {
			return err
		}
		kind, name, _ := strings.Cut(key.rest, ":")
		if kind == "lock" || kind == "lane" || kind == "write" {
			err = k.suspect(ctx, key.shard, kind, name)
		}
		if err != nil {
			return err
		}
	}
	for _, h := range k.q.allShards() {
		for _, set := range []string{h.Later, h.Dead} {
			err := k.members(ctx, h, set, func(ref string) string { return ref })
			if err != nil {
				return err
			}
		}
		if err := k.judge(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// members looks at the members of a ZSET, each of which names a write.
func (k *keyCheck) members(ctx context.Context, h *keyspace.Shard, set string, ref func(member string) string) error {
	for pairs, err := range steps(func(cursor uint64) *redis.ScanCmd { return k.q.rdb.ZScan(ctx, set, cursor, "", scanCount) }) {
		if err != nil {
			return err
		}
		for _, m := range evens(pairs) {
			if err := k.suspect(ctx, h, "place", ref(m)); err != nil {
				return err
			}
		}
	}
	return nil
}

// suspect has something judged, sooner or later.
func (k *keyCheck) suspect(ctx context.Context, h *keyspace.Shard, kind, name string) error {
	k.pending[h] = append(k.pending[h], suspect{kind, name})
	if len(k.pending[h]) < inspectAtOnce {
		return nil
	}
	return k.judge(ctx, h)
}

// judge has what is pending for a shard judged, and goes through the lanes that
// are too deep for that.
func (k *keyCheck) judge(ctx context.Context, h *keyspace.Shard) error {
	list := k.pending[h]
	k.pending[h] = nil
	if len(list) == 0 {
		return nil
	}
	reply, err := k.q.inspect(ctx, h, list)
	if err != nil {
		return err
	}
	for i := 0; i+1 < len(reply); i += 2 {
		code, name := intAt(reply, i), stringAt(reply, i+1)
		if code == laneTooLong {
			ref := func(id string) string { return keyspace.Ref(name, id) }
			if err := k.members(ctx, h, h.Lane(name), ref); err != nil {
				return err
			}
			continue
		}
		t := k.found[code]
		if t == nil {
			t = &tally{}
			k.found[code] = t
		}
		t.note(name)
	}
	return k.judge(ctx, h)
}

func (t *tally) note(name string) {
	if len(t.examples) < maxExamples {
		t.examples = append(t.examples, fmt.Sprintf("%q", name))
	}
	t.n++
}

// inspect runs inspect.lua.
func (q *Queue) inspect(ctx context.Context, h *keyspace.Shard, list []suspect) ([]any, error) {
	args := []any{h.Prefix, inspectDepth}
	for _, s := range list {
		args = append(args, s.kind, s.name)
	}
	r, err := script.Run(ctx, q.rdb, inspectScript, []string{h.Due, h.Later, h.Dead}, args...)
	v, _ := r.Value.([]any)
	return v, err
}
