package deferral

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/keyspace"
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
	if err := c.channel(ctx, n, s); err != nil {
		return err
	}
	// What is refused by itself would be refused to a script as well.
	r := &rehearsal{q: s}
	scenes := append(r.work(), r.operate()...)
	if missing := c.findings[found:]; slices.ContainsFunc(missing, isProblem) {
		return nil
	} else if len(missing) > 0 {
		scenes = r.work()
	}
	return c.rehearse(ctx, r, scenes)
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

// sweepTimeout bounds how long a scratch queue is cleaned up for.
const sweepTimeout = 2 * time.Second

// sweep removes what a scratch queue holds. Where Redis refuses to delete it, it
// expires.
func (q *Queue) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
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
	byNudges   = "telling workers at once that there is work"
)

// commandList is every command that the queue needs, on keys of a scratch queue.
func (q *Queue) commandList() []command {
	h := q.space.Shard(0)
	text, hash, set := h.Write(keyspace.Ref(scratchA, scratchW)), h.Graves, h.Dead
	return []command{
		{[]any{"eval", "return 1", 0}, bySending},
		{[]any{"set", text, 1, "px", 60_000}, ""}, {[]any{"get", text}, ""}, {[]any{"exists", text}, ""},
		{[]any{"pexpire", text, 60_000}, ""}, {[]any{"pttl", text}, ""},
		{[]any{"zadd", set, 1, scratchW}, ""}, {[]any{"zcard", set}, ""}, {[]any{"zrange", set, 0, 0}, ""},
		{[]any{"zrevrange", set, 0, 0}, ""}, {[]any{"zrangebyscore", set, 0, 0}, ""}, {[]any{"zrank", set, scratchW}, ""},
		{[]any{"zscore", set, scratchW}, ""}, {[]any{"zmscore", set, scratchW}, ""}, {[]any{"zrem", set, scratchW}, ""},
		{[]any{"hset", hash, scratchW, 1}, ""}, {[]any{"hget", hash, scratchW}, ""}, {[]any{"hmget", hash, scratchW}, ""},
		{[]any{"hexists", hash, scratchW}, ""}, {[]any{"hdel", hash, scratchW}, ""}, {[]any{"del", text}, ""},
		{[]any{"time"}, ""}, {[]any{"publish", h.Nudge, 0}, byNudges},
		{[]any{"mget", text}, byLocks},
		{[]any{"getrange", text, 0, 0}, byAcquire}, {[]any{"msetnx", text, 1}, byAcquire}, {[]any{"mset", text, 1}, byAcquire},
		{[]any{"scan", 0, "count", 1}, byOperator}, {[]any{"zscan", set, 0}, byOperator},
		{[]any{"hscan", hash, 0}, byOperator}, {[]any{"hlen", hash}, byOperator},
	}
}

// commands runs every command by itself. NOPERM is what Redis says to a user
// without a right; any other refusal the scripts will meet too. Several commands
// are refused with the same words when it is the keys that the user may not
// touch.
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
	refusals := map[string][]command{}
	for i, cmd := range got {
		if err := cmd.Err(); redis.HasErrorPrefix(err, "NOPERM") {
			refusals[err.Error()] = append(refusals[err.Error()], list[i])
		}
	}
	for _, words := range slices.Sorted(maps.Keys(refusals)) {
		c.refusal(words, refusals[words])
	}
	return nil
}

// refusal reports the commands that Redis refused with the same words.
func (c *checkup) refusal(words string, refused []command) {
	severity := Warning
	var names, usages []string
	for _, cmd := range refused {
		name := strings.ToUpper(fmt.Sprint(cmd.args[0]))
		usage := cmd.usage
		switch usage {
		case "":
			usage = scriptsWith(name)
			severity = Problem
		case byLocks, byReplicas, bySending:
			severity = Problem
		}
		names, usages = append(names, name), append(usages, usage)
	}
	if len(refused) > 1 {
		c.add(severity, CodeRights, "the client's user may not %s in the queue's key space: want the ACL patterns ~{%s:* and &{%s:* (%s)",
			strings.Join(names, ", "), c.q.cfg.Name, c.q.cfg.Name, words)
		return
	}
	c.add(severity, CodeRights, "the client's user may not %s, which is needed by %s (%s)", names[0], usages[0], words)
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
	c.add(Warning, CodeRights, "the client's user may not SUBSCRIBE to the queue's channels, so workers learn of writes only when they look (%v)", err)
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
