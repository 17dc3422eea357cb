package deferral_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// spots are all keys of a shard: those of one resource, and those that every
// lane depends on.
var spots = []string{
	"lock:r", "lane:r", "write:r\x00first", "write:r\x00second",
	"due", "later", "clock", "tries", "dead", "graves", "paused", "alive", "shards",
}

// FuzzGarbage puts something that is not ours in the place of one of our keys and
// then does everything there is to do. No call may panic or hang; one that fails
// says why and has accepted nothing; and no other lane loses anything.
func FuzzGarbage(f *testing.F) {
	b := newBench(f, redistest.Real(f), deferral.Config{})
	for i := range len(spots) * len(kinds) {
		place, kind := uint8(i%len(spots)), uint8(i/len(spots))
		switch i % 4 {
		case 0:
			f.Add(place, kind, "first", "1763646806123456", 0.0)
		case 1:
			f.Add(place, kind, "r\x00first", "-1 -1 -1 - ", math.Inf(1))
		case 2:
			f.Add(place, kind, "", "99999999999999999999 9 9 x", 8.0999999999e15)
		case 3:
			f.Add(place, kind, "r", "\xff\x00", -1e300)
		}
	}
	f.Fuzz(func(t *testing.T, place, kind uint8, field, text string, score float64) {
		if score != score {
			return // Redis has no NaN
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		b.t = t
		b.furnish(ctx)
		bad := b.key(spots[int(place)%len(spots)])
		if err := kinds[int(kind)%len(kinds)](ctx, b.rdb, bad, field, text, score); err != nil {
			t.Fatalf("garbage: %v", err)
		}
		b.everything(ctx)
		if ctx.Err() != nil {
			t.Fatal("it hangs")
		}

		// An operator takes away what is not ours. The other lane is as it was.
		if err := b.rdb.Del(ctx, bad).Err(); err != nil {
			t.Fatal(err)
		}
		b.q = b.another(b.rdb)
		if err := b.q.Resume(ctx, "other"); err != nil {
			t.Fatal(err)
		}
		turn := b.enter("other", 1)
		if d := turn.Deliveries()[0]; d.ID != "one" || string(d.Payload) != "payload of one" || d.Err != nil || d.Fence <= 0 {
			t.Fatalf("the other lane has %+v", d)
		}
		if next := b.settle(turn, 1, verdict(turn, deferral.Done, 0)...); next != "two:1" {
			t.Fatalf("the other lane goes on with %q", next)
		}
	})
}

// kinds puts one of Redis's types in the place of a key, or adds to what is there.
var kinds = []func(ctx context.Context, rdb *redis.Client, key, field, text string, score float64) error{
	func(ctx context.Context, rdb *redis.Client, key, _, text string, _ float64) error {
		return rdb.Set(ctx, key, text, 0).Err()
	},
	func(ctx context.Context, rdb *redis.Client, key, field, text string, _ float64) error {
		rdb.Del(ctx, key)
		return rdb.HSet(ctx, key, field, text).Err()
	},
	func(ctx context.Context, rdb *redis.Client, key, field, _ string, score float64) error {
		rdb.Del(ctx, key)
		return rdb.ZAdd(ctx, key, redis.Z{Member: field, Score: score}).Err()
	},
	func(ctx context.Context, rdb *redis.Client, key, field, text string, _ float64) error {
		rdb.Del(ctx, key)
		return rdb.RPush(ctx, key, field, text).Err()
	},
	func(ctx context.Context, rdb *redis.Client, key, field, text string, _ float64) error {
		rdb.Del(ctx, key)
		return rdb.SAdd(ctx, key, field, text).Err()
	},
	func(ctx context.Context, rdb *redis.Client, key, field, _ string, score float64) error {
		return errIfNot(rdb.ZAdd(ctx, key, redis.Z{Member: field, Score: score}).Err(), "WRONGTYPE")
	},
	func(ctx context.Context, rdb *redis.Client, key, field, text string, _ float64) error {
		return errIfNot(rdb.HSet(ctx, key, field, text).Err(), "WRONGTYPE")
	},
	func(ctx context.Context, rdb *redis.Client, key, _, _ string, _ float64) error {
		return rdb.Del(ctx, key).Err()
	},
}

func errIfNot(err error, prefix string) error {
	if redis.HasErrorPrefix(err, prefix) {
		return nil
	}
	return err
}

// furnish makes a queue that has something of everything.
func (b *bench) furnish(ctx context.Context) {
	b.t.Helper()
	if err := b.rdb.FlushAll(ctx).Err(); err != nil {
		b.t.Fatal(err)
	}
	b.q = b.another(b.rdb)
	b.push("other", "one", "two")
	b.push("grave", "dead")
	turn := b.enter("grave", 1)
	b.settle(turn, 0, verdict(turn, deferral.Buried, 0)...)
	b.push("r", "first", "second")
	turn = b.enter("r", 1)
	b.settle(turn, 0, verdict(turn, deferral.Failed, 0)...)
	w := write("r", "later")
	w.Delay = time.Hour
	if _, err := b.q.Push(ctx, w); err != nil {
		b.t.Fatal(err)
	}
}

// accepted fails if a call failed without having refused, or the other way round.
func (b *bench) accepted(ctx context.Context, id string, err error) {
	b.t.Helper()
	_, err1 := b.rdb.ZScore(ctx, b.key("lane:r"), id).Result()
	_, err2 := b.rdb.ZScore(ctx, b.key("later"), "r\x00"+id).Result()
	if stored := err1 == nil || err2 == nil; stored != (err == nil) {
		b.t.Errorf("%s: stored %v, told %v", id, stored, err)
	}
}

// everything calls every method. What they say is their affair, but that they may
// have been carried out: Redis has answered.
func (b *bench) everything(ctx context.Context) {
	b.t.Helper()
	q := b.another(b.rdb)
	told := func(what string, err error) {
		if errors.Is(err, deferral.ErrUnclear) {
			b.t.Errorf("%s: %v", what, err)
		}
	}
	_, err := q.Push(ctx, write("r", "new"))
	told("push", err)
	b.accepted(ctx, "new", err)
	w := write("r", "new and later")
	w.Delay = time.Hour
	_, err = q.Push(ctx, w)
	told("push for later", err)
	b.accepted(ctx, w.ID, err)
	a, err := q.Admit(ctx, write("r", "direct"))
	told("admit", err)
	if a != nil && a.Turn != nil {
		_, err = a.Turn.Settle(ctx, deferral.Settlement{Verdicts: []deferral.Verdict{{Delivery: a.Turn.Direct(write("r", "direct")), Fate: deferral.Entered}}})
		told("settle a direct write", err)
		a.Turn.Lease().End()
	}
	_, err = q.Due(ctx, 0, 0, 0, time.Minute)
	told("due", err)
	for _, fate := range []deferral.Fate{deferral.Return, deferral.Failed, deferral.Aside, deferral.Done, deferral.Buried, deferral.Halted} {
		turn, err := q.Enter(ctx, "r", 10, 0)
		told("enter", err)
		if turn == nil {
			continue
		}
		_, err = turn.Settle(ctx, deferral.Settlement{Verdicts: verdict(turn, fate, 0)})
		told("settle "+string(fate), err)
		turn.Lease().End()
	}
	b.operate(ctx, q, told)
	ds, err := q.Pop(ctx, 1, 365*24*time.Hour) // nothing is as old, unless by a clock that is garbage or follows a stamp that is
	told("pop", err)
	for _, d := range ds {
		if d.Resource == "other" {
			told("retry", d.Retry(ctx, 0, errors.New("cause")))
		} else {
			told("ack", d.Ack(ctx))
		}
	}
}

// operate calls what operators call.
func (b *bench) operate(ctx context.Context, q *deferral.Queue, told func(string, error)) {
	for _, id := range []string{"first", "new", "later", "dead", "nobody"} {
		_, err := q.LookupIn(ctx, "r", id)
		told("look up", err)
		told("cancel", q.CancelIn(ctx, "r", id))
		told("revive", q.Revive(ctx, "r", id))
		told("forget", q.Forget(ctx, "r", id))
	}
	_, err := q.Lookup(ctx, "second")
	told("look up anywhere", err)
	told("pause", q.Pause(ctx, "r", "why not"))
	told("resume", q.Resume(ctx, "r"))
	_, err = q.Free(ctx, "r")
	told("free", err)
	for _, err := range q.Dead(ctx) {
		told("list the dead", err)
	}
	_, err = q.ReviveAll(ctx)
	told("revive all", err)
	_, err = q.Stats(ctx)
	told("stats", err)
	for _, err := range q.Lanes(ctx) {
		told("list the lanes", err)
	}
	_, err = q.Deepest(ctx, 3)
	told("deepest", err)
	_, err = q.Check(ctx)
	told("check", err)
}
