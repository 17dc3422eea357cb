package deferral_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// disturbed are the calls that a fault of Redis can stop half way. Each prepares
// what it needs while all is well, and returns the call, which may be repeated
// until it succeeds.
var disturbed = []struct {
	name    string
	prepare func(b *bench) func() error
}{
	{"push", func(b *bench) func() error { return b.call("push", "new") }},
	{"push behind another", func(b *bench) func() error { b.push("r", "a"); return b.call("push", "b") }},
	{"push for later", func(b *bench) func() error {
		return func() error {
			_, err := b.q.Push(b.t.Context(), deferral.Write{Resource: "r", ID: "a", Delay: time.Microsecond})
			return err
		}
	}},
	{"admit", func(b *bench) func() error { return b.call("admit", "a") }},
	{"admit behind another", func(b *bench) func() error { b.push("r", "a"); return b.call("admit", "b") }},
	{"admit behind a lock", func(b *bench) func() error {
		b.granted("r", "a").Lease().End()
		return b.call("admit", "b")
	}},
	{"look", func(b *bench) func() error {
		b.push("r", "a")
		if _, err := b.q.Push(b.t.Context(), deferral.Write{Resource: "s", ID: "a", Delay: time.Microsecond}); err != nil {
			b.t.Fatal(err)
		}
		return func() error { _, err := b.q.Due(b.t.Context(), 0, 10, 0, time.Minute); return err }
	}},
	{"look without a mark", func(b *bench) func() error {
		b.push("r", "a")
		return func() error { _, err := b.q.Due(b.t.Context(), 0, 10, 0, 0); return err }
	}},
	{"enter", func(b *bench) func() error {
		b.push("r", "a", "b")
		return func() error { _, err := b.q.Enter(b.t.Context(), "r", 2, 0); return err }
	}},
	{"enter again", func(b *bench) func() error {
		b.push("r", "a", "b")
		turn := b.enter("r", 2)
		b.settle(turn, 0, verdict(turn, deferral.Failed, time.Hour)...)
		return func() error { _, err := b.q.Enter(b.t.Context(), "r", 2, 0); return err }
	}},
	{"leave", func(b *bench) func() error { return b.leave(b.granted("r", "a")) }},
	{"done", func(b *bench) func() error { return b.leaving(deferral.Done) }},
	{"return", func(b *bench) func() error { return b.leaving(deferral.Return) }},
	{"fail", func(b *bench) func() error { return b.leaving(deferral.Failed) }},
	{"step aside", func(b *bench) func() error { return b.leaving(deferral.Aside) }},
	{"bury", func(b *bench) func() error { return b.leaving(deferral.Buried) }},
	{"halt", func(b *bench) func() error { return b.leaving(deferral.Halted) }},
	{"fail directly", func(b *bench) func() error {
		turn := b.granted("r", "a")
		return b.leave(turn, deferral.Verdict{Delivery: turn.Direct(write("r", "a")), Fate: deferral.Entered})
	}},
}

func (b *bench) call(way, id string) func() error {
	return func() error { return accepts[way](b, write("r", id)) }
}

// leaving starts two writes of three and returns the call that ends them.
func (b *bench) leaving(fate deferral.Fate) func() error {
	b.t.Helper()
	b.push("r", "a", "b", "c")
	turn := b.enter("r", 2)
	return b.leave(turn, verdict(turn, fate, 0)...)
}

func (b *bench) leave(turn *deferral.Turn, vs ...deferral.Verdict) func() error {
	return func() error {
		_, err := turn.Settle(b.t.Context(), deferral.Settlement{Verdicts: vs, Next: 1, GoOn: deferral.Always})
		return err
	}
}

// passing is what a script that was stopped may leave until the call is repeated
// or the write's turn has come: a payload that is not accepted yet or not any
// more, a lane in the index that is empty, a write on its way out of its lane,
// and what was counted of one that has left it.
var passing = []string{
	"has a payload and no place", "which is empty", "tries has", "is in dead and lane", " and later", "has nobody dead",
}

// endure makes a call while something is wrong, sets that right and makes the
// call again. What was accepted before, or was said to be accepted, must be there
// in the end, and everything whole.
func (b *bench) endure(what string, call func() error, harm, heal func()) {
	b.t.Helper()
	harm()
	err := call()
	heal()
	var answer redis.Error
	if err != nil && (errors.Is(err, deferral.ErrUnclear) || !errors.As(err, &answer)) {
		b.t.Errorf("%s: %v", what, err)
	}
	for _, p := range b.problems() {
		if !slices.ContainsFunc(passing, func(harmless string) bool { return strings.Contains(p, harmless) }) {
			b.t.Errorf("%s: after %v: %s", what, err, p)
		}
	}
	if err != nil {
		if err := call(); err != nil {
			b.t.Fatalf("%s: set right again: %v", what, err)
		}
	}
	b.del("paused")
	for range 2 {
		b.due(10, 0) // what is for later joins its lane
		for _, lane := range []string{"r", "s"} {
			b.del("lock:" + lane) // expired
			b.drainAll(lane)
		}
	}
	for _, p := range b.problems() {
		b.t.Errorf("%s: in the end: %s", what, p)
	}
	if keys := b.rdb.Keys(b.t.Context(), b.key("lane:*")).Val(); len(keys) > 0 {
		b.t.Errorf("%s: in the end: %q", what, keys)
	}
}

// drainAll is drain for a lane whose head may rest.
func (b *bench) drainAll(lane string) {
	b.t.Helper()
	ctx := b.t.Context()
	for ref, text := range b.rdb.HGetAll(ctx, b.key("tries")).Val() {
		f := strings.Fields(text)
		f[1] = "0"
		b.rdb.HSet(ctx, b.key("tries"), ref, strings.Join(f, " "))
	}
	b.drain(lane)
}

func (b *bench) problems() []string {
	b.t.Helper()
	problems, err := redistest.Problems(b.t.Context(), b.rdb, b.cfg.Name)
	if err != nil {
		b.t.Fatal(err)
	}
	return problems
}

// rights are the commands that the scripts of the core call, and the calls.
var rights = strings.Fields(`get set del exists pexpire pttl time publish zadd zrem zcard zscore zmscore zrank zrange
	zrevrange zrangebyscore hget hset hdel hexists hmget evalsha eval`)

// A user without one of the rights. Scripts are not rolled back: what they had
// done by then stands.
func TestRightThatIsMissingLeavesNothingHalfDone(t *testing.T) {
	b := newBench(t, redistest.Real(t), deferral.Config{})
	ctx := t.Context()
	acl := func(rules ...any) {
		t.Helper()
		if err := b.rdb.Do(ctx, append([]any{"acl", "setuser", "u"}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	allow := []any{"on", ">pw", "~{n:*", "&{n:*", "-@all", "+ping", "+hello", "+setnx"}
	for _, command := range rights {
		allow = append(allow, "+"+command)
	}
	acl(allow...)
	user := b.s.ClientWith(t, func(o *redis.Options) { o.Username, o.Password = "u", "pw" })
	for _, call := range disturbed {
		for _, command := range rights {
			b.rdb.FlushDB(ctx)
			b.q = b.another(user)
			b.due(0, 0)
			b.endure(fmt.Sprintf("%s without %s", call.name, command), call.prepare(b),
				func() { acl("-" + command) }, func() { acl("+" + command) })
		}
	}
}

// A key of another type, which something else has put there.
func TestKeyOfAnotherTypeIsAClearErrorAndNothingIsHalfDone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s, deferral.Config{})
		ctx := t.Context()
		for _, call := range disturbed {
			for _, key := range []string{"lock:r", "lane:r", "due", "clock", "tries", "paused", "later", "dead", "graves", "write:r\x00a", "write:r\x00b"} {
				b.rdb.FlushDB(ctx)
				b.q = b.another(b.rdb)
				b.due(0, 0)
				do := call.prepare(b)
				k := b.key(key)
				b.endure(fmt.Sprintf("%s with another %q", call.name, key), do, func() {
					b.rdb.Rename(ctx, k, "kept")
					if err := b.rdb.RPush(ctx, k, "a list").Err(); err != nil {
						t.Fatal(err)
					}
				}, func() {
					if b.rdb.Del(ctx, k).Val() == 1 { // it was not the call's to delete
						b.rdb.Rename(ctx, "kept", k)
					}
				})
			}
		}
	})
}

// When memory is full nothing new gets in, and all that is there can get out: a
// queue that cannot be drained would stay full.
func TestFullMemoryRefusesPushesAndLetsTheQueueDrain(t *testing.T) {
	b := newBench(t, redistest.Real(t), deferral.Config{})
	ctx := t.Context()
	limit := func(bytes int) {
		t.Helper()
		if err := b.rdb.ConfigSet(ctx, "maxmemory", fmt.Sprint(bytes)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, call := range disturbed[6:] { // those that do not accept a write
		b.rdb.FlushDB(ctx)
		b.q = b.another(b.rdb)
		b.due(0, 0)
		do := call.prepare(b)
		limit(1)
		if err := do(); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		before := b.contents()
		for way, accept := range accepts {
			err := accept(b, write("t", "new"))
			if err == nil || errors.Is(err, deferral.ErrUnclear) || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("%s into full memory: %v", way, err)
			}
		}
		wantSame(t, before, b.contents())
		if err := b.rdb.Del(ctx, b.key("paused"), b.key("lock:r")).Err(); err != nil {
			t.Error(err)
		}
		if call.name != "enter again" { // which rests
			b.drain("r") // in full memory
		}
		limit(0)
		b.due(10, 0)
		b.drainAll("r")
		b.drain("s")
		for _, p := range b.problems() {
			t.Errorf("%s: %s", call.name, p)
		}
	}
}
