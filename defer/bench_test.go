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

// bench is a queue and the server it is kept in.
type bench struct {
	t   testing.TB
	s   *redistest.Server
	rdb *redis.Client
	q   *deferral.Queue
	cfg deferral.Config
}

// newBench makes the queue "n" on s. Its locks live for a minute unless cfg says
// otherwise: nothing expires in a test that does not ask for it.
func newBench(t testing.TB, s *redistest.Server, cfg deferral.Config) *bench {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "n"
	}
	if cfg.LockTTL == 0 {
		cfg.LockTTL = time.Minute
	}
	b := &bench{t: t, s: s, rdb: s.Client(t), cfg: cfg}
	b.q = b.another(b.rdb)
	return b
}

// another is the queue of another process, which reaches Redis through rdb.
func (b *bench) another(rdb redis.UniversalClient) *deferral.Queue {
	b.t.Helper()
	q, err := deferral.New(rdb, b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	return q
}

// onBoth runs f with a queue on each kind of server. The keys it leaves are
// audited, and no lock may be left.
func onBoth(t *testing.T, cfg deferral.Config, f func(t *testing.T, b *bench)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s, cfg)
		f(t, b)
		b.audit()
	})
}

// manyKeys prepares a miniredis for many keys: at every command it would look at
// all of them for what has expired. Nothing expires any more.
func (b *bench) manyKeys() {
	if m := b.s.Mini(); m != nil {
		m.ClockTTL(false)
	}
}

func (b *bench) audit() {
	b.t.Helper()
	redistest.Audit(b.t, b.rdb, b.cfg.Name)
	locks, err := redistest.Locks(b.t.Context(), b.rdb, b.cfg.Name)
	if err != nil || len(locks) != 0 {
		b.t.Errorf("locks are left: %q, %v", locks, err)
	}
}

// write is a write whose payload tells which one it is.
func write(resource, id string) deferral.Write {
	return deferral.Write{Resource: resource, ID: id, Payload: []byte("payload of " + id)}
}

func (b *bench) push(resource string, ids ...string) {
	b.t.Helper()
	for _, id := range ids {
		if _, err := b.q.Push(b.t.Context(), write(resource, id)); err != nil {
			b.t.Fatalf("push %s: %v", id, err)
		}
	}
}

func (b *bench) admit(resource, id string) *deferral.Admission {
	b.t.Helper()
	a, err := b.q.Admit(b.t.Context(), write(resource, id))
	if err != nil {
		b.t.Fatalf("admit %s: %v", id, err)
	}
	return a
}

// granted admits a write that must be allowed to run now.
func (b *bench) granted(resource, id string) *deferral.Turn {
	b.t.Helper()
	a := b.admit(resource, id)
	if a.Turn == nil {
		b.t.Fatalf("%s must wait: %v", id, a.Why)
	}
	return a.Turn
}

// deferred admits a write that must be made to wait.
func (b *bench) deferred(resource, id string, why deferral.Why) *deferral.Admission {
	b.t.Helper()
	a := b.admit(resource, id)
	if a.Turn != nil || a.Why != why {
		b.t.Fatalf("admit %s: turn %v, why %v, want %v", id, a.Turn, a.Why, why)
	}
	return a
}

// enter starts up to batch writes of a lane that must have some.
func (b *bench) enter(lane string, batch int) *deferral.Turn {
	b.t.Helper()
	turn, err := b.q.Enter(b.t.Context(), lane, batch, 0)
	if err != nil || turn == nil {
		b.t.Fatalf("enter %s: %v, %v", lane, turn, err)
	}
	return turn
}

// refused says that nothing can be started in a lane now.
func (b *bench) refused(lane string) {
	b.t.Helper()
	turn, err := b.q.Enter(b.t.Context(), lane, 1, 0)
	if err != nil || turn != nil {
		b.t.Fatalf("entered %s: %v, %v", lane, turn, err)
	}
}

// settle ends what a turn is doing, and says what comes next: "a:1 b:1", each
// with its attempt, or "" if the lock was given back.
func (b *bench) settle(turn *deferral.Turn, next int, verdicts ...deferral.Verdict) string {
	b.t.Helper()
	return b.settleAs(turn, deferral.Settlement{Next: next, GoOn: deferral.Always, Verdicts: verdicts})
}

func (b *bench) settleAs(turn *deferral.Turn, s deferral.Settlement) string {
	b.t.Helper()
	got, err := turn.Settle(b.t.Context(), s)
	if err != nil || !got.Held {
		b.t.Fatalf("settle: %+v, %v", got, err)
	}
	return started(turn)
}

// verdict gives every delivery of a turn the same fate.
func verdict(turn *deferral.Turn, fate deferral.Fate, rest time.Duration) []deferral.Verdict {
	var vs []deferral.Verdict
	for _, d := range turn.Deliveries() {
		vs = append(vs, deferral.Verdict{Delivery: d, Fate: fate, Rest: rest, Cause: "cause"})
	}
	return vs
}

// started names the writes a turn has started, each with its attempt.
func started(turn *deferral.Turn) string {
	var out []string
	for _, d := range turn.Deliveries() {
		out = append(out, fmt.Sprintf("%s:%d", d.ID, d.Attempt))
	}
	return strings.Join(out, " ")
}

func (b *bench) wantStarted(turn *deferral.Turn, want string) {
	b.t.Helper()
	if got := started(turn); got != want {
		b.t.Fatalf("started %q, want %q", got, want)
	}
}

// drain runs a lane until it is empty and returns the IDs in their order.
func (b *bench) drain(lane string) string {
	b.t.Helper()
	var ids []string
	for b.depth(lane) > 0 {
		for turn, more := b.enter(lane, 10), true; more; {
			for _, d := range turn.Deliveries() {
				ids = append(ids, d.ID)
			}
			more = b.settle(turn, 10, verdict(turn, deferral.Done, 0)...) != ""
		}
	}
	return strings.Join(ids, " ")
}

// crash ends a turn as the death of its process does: nobody renews the lock,
// nobody settles, and a TTL later the lock is gone.
func (b *bench) crash(turn *deferral.Turn) {
	b.t.Helper()
	turn.Lease().End()
	b.del("lock:" + turn.Lane())
}

// key is where the queue keeps something, if it has one shard.
func (b *bench) key(rest string) string { return "{" + b.cfg.Name + ":0}:" + rest }

func (b *bench) del(rest string) {
	b.t.Helper()
	if err := b.rdb.Del(b.t.Context(), b.key(rest)).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// holder is the token in a lane's lock, "" if it is free.
func (b *bench) holder(lane string) string {
	b.t.Helper()
	token, err := b.rdb.Get(b.t.Context(), b.key("lock:"+lane)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		b.t.Fatal(err)
	}
	return token
}

func (b *bench) depth(lane string) int64 {
	b.t.Helper()
	n, err := b.rdb.ZCard(b.t.Context(), b.key("lane:"+lane)).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// lane is what waits in a lane, oldest first.
func (b *bench) lane(lane string) string {
	b.t.Helper()
	ids, err := b.rdb.ZRange(b.t.Context(), b.key("lane:"+lane), 0, -1).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Join(ids, " ")
}

// due looks at the first shard.
func (b *bench) due(n int, lookback time.Duration) deferral.Due {
	b.t.Helper()
	due, err := b.q.Due(b.t.Context(), 0, n, lookback, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return due
}

// wantDue says which lanes are due now, the longest due first.
func (b *bench) wantDue(lookback time.Duration, lanes ...string) deferral.Due {
	b.t.Helper()
	due := b.due(10, lookback)
	if !slices.Equal(due.Lanes, lanes) {
		b.t.Fatalf("due %q, want %q", due.Lanes, lanes)
	}
	return due
}

// contents is every key of the server, for what must not change anything.
func (b *bench) contents() map[string]string {
	b.t.Helper()
	ctx, out := b.t.Context(), map[string]string{}
	keys, err := b.rdb.Keys(ctx, "*").Result()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, k := range keys {
		var v any
		switch kind := b.rdb.Type(ctx, k).Val(); kind {
		case "string":
			v, err = b.rdb.Get(ctx, k).Result()
		case "hash":
			v, err = b.rdb.HGetAll(ctx, k).Result()
		case "zset":
			v, err = b.rdb.ZRangeWithScores(ctx, k, 0, -1).Result()
		default:
			b.t.Fatalf("key %q is a %s", k, kind)
		}
		if err != nil {
			b.t.Fatal(err)
		}
		out[k] = fmt.Sprint(v)
	}
	return out
}

// now is Redis's clock.
func (b *bench) now() time.Time {
	b.t.Helper()
	now, err := b.rdb.Time(b.t.Context()).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	return now
}
