package deferral

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/lock"
)

// rights finds out what the client's user may do on a server, by doing it in a
// scratch queue there: first every command by itself, because Redis does not
// say which one it has refused to a script, then every script.
func (c *checkup) rights(ctx context.Context, n node) error {
	s, err := c.q.scratch(ctx, n)
	if err != nil {
		return err
	}
	if s == nil {
		c.add(Warning, CodeNotChecked, "the rights of the client's user could not be checked: "+
			"Config.Name is too long for a key space beside it")
		return nil
	}
	defer s.sweep(ctx)
	found := len(c.findings)
	if err := c.commands(ctx, n, s); err != nil {
		return err
	}
	if err := c.channel(ctx, n, s); err != nil || len(c.findings) > found {
		return err
	}
	script, err := s.rehearse(ctx)
	if err == nil {
		return nil
	}
	if !isAnswer(err) && !errors.Is(err, ErrLost) {
		return err
	}
	c.add(Problem, CodeRefused, "%s is refused: %v", script, err)
	return nil
}

// scratchName is followed by something random. Its keys are matched by an ACL
// pattern that ends behind the Name, as "~{name:*" does.
const scratchName = ":check-"

// scratchTries bounds the search for a name whose keys are kept by one certain
// server.
const scratchTries = 10_000

// scratch returns a queue of its own that is kept by n, nil if there is none.
func (q *Queue) scratch(ctx context.Context, n node) (*Queue, error) {
	cfg := q.cfg
	cfg.Shards, cfg.Replicas, cfg.MaxDepth, cfg.MaxDead = 1, 0, 0, 0
	base := q.cfg.Name + scratchName + strings.ToLower(rand.Text()[:8])
	for i := range scratchTries {
		cfg.Name = fmt.Sprintf("%s%d", base, i)
		if len(cfg.Name) > keyspace.MaxName {
			break
		}
		at, err := nodeOf(ctx, q.rdb, "{"+cfg.Name+":0}:")
		if err != nil {
			return nil, err
		}
		if at == n.rdb {
			return New(q.rdb, cfg)
		}
	}
	return nil, nil
}

// The resources, and the write, of a scratch queue.
const (
	scratchA, scratchB, scratchC = "a", "b", "c"
	scratchW                     = "w"
)

// sweep removes what a scratch queue holds. Where Redis refuses to delete it, it
// expires.
func (q *Queue) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	h := q.space.Shard(0)
	keys := []string{h.Due, h.Later, h.Clock, h.Tries, h.Dead, h.Graves, h.Paused, h.Alive, q.space.ShardsKey()}
	for _, r := range []string{scratchA, scratchB, scratchC} {
		keys = append(keys, h.Lock(r), h.Lane(r))
		for _, id := range []string{scratchW, scratchW + "2", scratchW + "3"} {
			keys = append(keys, h.Write(keyspace.Ref(r, id)))
		}
	}
	pipe := q.rdb.Pipeline()
	for _, key := range keys {
		pipe.PExpire(ctx, key, time.Minute)
		pipe.Del(ctx, key)
	}
	_, _ = pipe.Exec(ctx) // what is left is a few bytes, and most of it expires
}

// command is one that the queue needs.
type command struct {
	args  []any
	usage string // who needs it; "": scripts of this package
}

const (
	byLocks    = "renewing and releasing locks"
	byAcquire  = "package lock's Acquire"
	byOperator = "Lookup, Cancel, Lanes, Stats and Check"
	byReplicas = "Config.Replicas"
	bySending  = "sending scripts"
)

// commandList is every command that the queue needs, on keys of a scratch queue.
func (q *Queue) commandList() []command {
	h := q.space.Shard(0)
	text, hash, set := h.Write(keyspace.Ref(scratchA, scratchW)), h.Graves, h.Dead
	list := []command{
		{[]any{"eval", "return 1", 0}, bySending},
		{[]any{"set", text, 1, "px", 60_000}, ""}, {[]any{"get", text}, ""}, {[]any{"exists", text}, ""},
		{[]any{"pexpire", text, 60_000}, ""}, {[]any{"pttl", text}, ""},
		{[]any{"zadd", set, 1, scratchW}, ""}, {[]any{"zcard", set}, ""}, {[]any{"zrange", set, 0, 0}, ""},
		{[]any{"zrevrange", set, 0, 0}, ""}, {[]any{"zrangebyscore", set, 0, 0}, ""}, {[]any{"zrank", set, scratchW}, ""},
		{[]any{"zscore", set, scratchW}, ""}, {[]any{"zrem", set, scratchW}, ""},
		{[]any{"hset", hash, scratchW, 1}, ""}, {[]any{"hget", hash, scratchW}, ""}, {[]any{"hmget", hash, scratchW}, ""},
		{[]any{"hexists", hash, scratchW}, ""}, {[]any{"hdel", hash, scratchW}, ""}, {[]any{"del", text}, ""},
		{[]any{"time"}, ""}, {[]any{"publish", h.Nudge, 0}, ""},
		{[]any{"mget", text}, byLocks},
		{[]any{"getrange", text, 0, 0}, byAcquire}, {[]any{"msetnx", text, 1}, byAcquire}, {[]any{"mset", text, 1}, byAcquire},
		{[]any{"scan", 0, "count", 1}, byOperator}, {[]any{"zscan", set, 0}, byOperator},
		{[]any{"hscan", hash, 0}, byOperator}, {[]any{"hlen", hash}, byOperator},
	}
	if q.cfg.Replicas > 0 {
		list = append(list, command{[]any{"wait", 0, 1}, byReplicas})
	}
	return list
}

// commands runs every command by itself. Redis says of a user without a right
// NOPERM; any other refusal the scripts will meet too.
func (c *checkup) commands(ctx context.Context, n node, s *Queue) error {
	list := s.commandList()
	if c.q.cfg.Replicas > 0 {
		list = append(list, command{[]any{"wait", 0, 1}, byReplicas})
	}
	pipe := n.rdb.Pipeline()
	got := make([]*redis.Cmd, len(list))
	for i, cmd := range list {
		got[i] = pipe.Do(ctx, cmd.args...)
	}
	if _, err := pipe.Exec(ctx); err != nil && !isAnswer(err) {
		return err
	}
	for i, cmd := range got {
		if !redis.HasErrorPrefix(cmd.Err(), "NOPERM") {
			continue
		}
		name := strings.ToUpper(cmd.Name())
		severity, usage := Problem, list[i].usage
		switch usage {
		case "":
			usage = scriptsWith(name)
		case byOperator, byAcquire:
			severity = Warning
		}
		c.add(severity, CodeRights, "the client's user may not %s, which is needed by %s: %v", name, usage, cmd.Err())
	}
	return nil
}

// channel looks whether the user may subscribe to what workers are nudged by.
func (c *checkup) channel(ctx context.Context, n node, s *Queue) error {
	sub := n.rdb.Subscribe(ctx)
	defer sub.Close()
	err := sub.Subscribe(ctx, s.space.Shard(0).Nudge)
	if err == nil {
		_, err = sub.Receive(ctx)
	}
	switch {
	case err == nil:
		return nil
	case !isAnswer(err):
		return err
	}
	c.add(Warning, CodeRights, "the client's user may not SUBSCRIBE to the queue's channels, so workers learn of writes only when they look: %v", err)
	return nil
}

// scriptsWith names the files whose Lua text calls a command.
func scriptsWith(command string) string {
	files := map[string]string{
		"lane.lua": laneLua, "place.lua": placeLua, "batch.lua": batchLua, "ready.lua": readyLua,
		"admit.lua": admitLua, "push.lua": pushLua, "take.lua": takeLua, "claim.lua": claimLua, "leave.lua": leaveLua,
		"cancel.lua": cancelLua, "revive.lua": reviveLua, "forget.lua": forgetLua, "pause.lua": pauseLua, "free.lua": freeLua,
		"lookup.lua": lookupLua, "survey.lua": surveyLua, "letters.lua": lettersLua, "inspect.lua": inspectLua,
	}
	var with []string
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if strings.Contains(files[file], "'"+command+"'") {
			with = append(with, file)
		}
	}
	if with == nil {
		return "every script"
	}
	return strings.Join(with, ", ")
}

// rehearse runs every script in a scratch queue. With an error it names the one
// that failed.
func (q *Queue) rehearse(ctx context.Context) (script string, err error) {
	var t *Turn
	defer func() {
		if t != nil {
			t.lease.End()
		}
	}()
	write := func(resource, id string) Write { return Write{Resource: resource, ID: id} }
	settle := func(f Fate, next int) error {
		s := Settlement{Next: next, GoOn: Always}
		for _, d := range t.Deliveries() {
			s.Verdicts = append(s.Verdicts, Verdict{Delivery: d, Fate: f})
		}
		_, err := t.Settle(ctx, s)
		return err
	}
	steps := []struct {
		script string
		run    func() error
	}{
		{"push.lua", func() error { return q.pushAll(ctx, write(scratchA, scratchW), write(scratchA, scratchW+"2")) }},
		{"push.lua", func() error {
			return q.pushAll(ctx, Write{Resource: scratchA, ID: scratchW + "3", Delay: time.Minute})
		}},
		{"take.lua", func() error { _, err := q.Due(ctx, 0, 1, 0, time.Second); return err }},
		{"admit.lua", func() error {
			a, err := q.Admit(ctx, write(scratchB, scratchW))
			if err == nil {
				t = a.Turn
			}
			return err
		}},
		{"redislock's refresh.lua", func() error { return t.lease.Extend(ctx) }},
		{"stamp.lua", func() error { return t.lease.Lift(ctx, 0) }},
		{"leave.lua", func() error { return settle(Done, 0) }},
		{"claim.lua", func() (err error) { t, err = q.Enter(ctx, scratchA, 1, 0); return err }},
		{"leave.lua", func() error { return settle(Buried, 1) }},
		{"leave.lua", func() error { return settle(Failed, 0) }},
		{"lookup.lua", func() error { _, err := q.LookupIn(ctx, scratchA, scratchW); return err }},
		{"letters.lua", func() error { return firstError(q.Dead(ctx)) }},
		{"survey.lua", func() error { return firstError(q.Lanes(ctx)) }},
		{"revive.lua", func() error { return q.Revive(ctx, scratchA, scratchW) }},
		{"cancel.lua", func() error { return q.CancelIn(ctx, scratchA, scratchW) }},
		{"forget.lua", func() error { return q.Forget(ctx, scratchA, scratchW) }},
		{"pause.lua", func() error { return q.Pause(ctx, scratchA, "") }},
		{"pause.lua", func() error { return q.Resume(ctx, scratchA) }},
		{"free.lua", func() error { _, err := q.Free(ctx, scratchA); return err }},
		{"inspect.lua", func() error { _, err := q.inspect(ctx, q.space.Shard(0), nil); return err }},
		{"redislock's obtain.lua", func() error { return q.relock(ctx) }},
	}
	for _, s := range steps {
		if err := s.run(); err != nil && !errors.Is(err, ErrNotFound) {
			return s.script, err
		}
	}
	return "", nil
}

func (q *Queue) pushAll(ctx context.Context, writes ...Write) error {
	for _, w := range writes {
		if _, err := q.Push(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// relock locks and unlocks as package lock does by itself.
func (q *Queue) relock(ctx context.Context) error {
	l, err := q.locker.Acquire(ctx, scratchC)
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

// firstError goes through a list until its end or its error.
func firstError[T any](list func(func(T, error) bool)) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

var _ = lock.ErrLost
