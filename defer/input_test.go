package deferral_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

func TestBadConfigIsAnErrorThatNamesTheField(t *testing.T) {
	rdb := redistest.Mini(t).ClientWith(t, func(o *redis.Options) { o.ReadTimeout = 3 * time.Second })
	for _, tt := range []struct {
		field string
		cfg   deferral.Config
	}{
		{"Name", deferral.Config{}},
		{"Name", deferral.Config{Name: "a{b"}},
		{"Name", deferral.Config{Name: "a}b"}},
		{"Name", deferral.Config{Name: "\xff"}},
		{"Name", deferral.Config{Name: "a\x00"}},
		{"Name", deferral.Config{Name: strings.Repeat("n", 129)}},
		{"Shards", deferral.Config{Name: "n", Shards: -1}},
		{"Shards", deferral.Config{Name: "n", Shards: 1025}},
		{"LockTTL", deferral.Config{Name: "n", LockTTL: -1}},
		{"LockTTL", deferral.Config{Name: "n", LockTTL: time.Microsecond}},
		{"LockTTL", deferral.Config{Name: "n", LockTTL: 2 * time.Hour}},
		{"MaxHold", deferral.Config{Name: "n", MaxHold: -1}},
		{"MaxHold", deferral.Config{Name: "n", LockTTL: time.Minute, MaxHold: time.Second}},
		{"MaxHold", deferral.Config{Name: "n", MaxHold: 25 * time.Hour}},
		{"MaxPayload", deferral.Config{Name: "n", MaxPayload: -1}},
		{"MaxPayload", deferral.Config{Name: "n", MaxPayload: 65 << 20}},
		{"MaxDepth", deferral.Config{Name: "n", MaxDepth: -1}},
		{"MaxDead", deferral.Config{Name: "n", MaxDead: -1}},
		{"Replicas", deferral.Config{Name: "n", Replicas: -1}},
		{"Replicas", deferral.Config{Name: "n", Replicas: 17}},
		{"ReplicaTimeout", deferral.Config{Name: "n", ReplicaTimeout: -1}},
		{"ReplicaTimeout", deferral.Config{Name: "n", ReplicaTimeout: time.Hour}},
		{"ReplicaTimeout", deferral.Config{Name: "n", Replicas: 1, ReplicaTimeout: 3 * time.Second}},
	} {
		if q, err := deferral.New(rdb, tt.cfg); err == nil || q != nil || !strings.Contains(err.Error(), "Config."+tt.field+" ") {
			t.Errorf("%+v: %v, want an error that names %s", tt.cfg, err, tt.field)
		}
	}
	var none *redis.Client
	for _, rdb := range []redis.UniversalClient{nil, none} {
		if q, err := deferral.New(rdb, deferral.Config{Name: "n"}); err == nil || q != nil {
			t.Errorf("client %v: %v", rdb, err)
		}
	}
	q, err := deferral.New(rdb, deferral.Config{Name: strings.Repeat("n", 128), LockTTL: time.Hour})
	if err != nil || q.Shards() != 1 || q.LockTTL() != time.Hour || len(q.Name()) != 128 {
		t.Errorf("at the bounds: %v", err)
	}
}

func TestBadWriteIsRefusedAndNothingIsStored(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		now := time.Now()
		for _, tt := range []struct {
			field string
			w     deferral.Write
		}{
			{"ID", deferral.Write{ID: strings.Repeat("i", 257)}},
			{"ID", deferral.Write{ID: strings.Repeat("i", 64<<10)}},
			{"ID", deferral.Write{ID: "\xff"}},
			{"ID", deferral.Write{ID: "a\x00b"}},
			{"Resource", deferral.Write{Resource: strings.Repeat("r", 1025)}},
			{"Resource", deferral.Write{Resource: strings.Repeat("r", 64<<10)}},
			{"Resource", deferral.Write{Resource: "\xc3"}},
			{"Resource", deferral.Write{Resource: "\x00"}},
			{"Kind", deferral.Write{Kind: strings.Repeat("k", 129)}},
			{"Payload", deferral.Write{Payload: make([]byte, 1<<20+1)}},
			{"Meta", deferral.Write{Meta: map[string]string{"k": strings.Repeat("m", 64<<10)}}},
			{"Delay", deferral.Write{Delay: -1}},
			{"Delay", deferral.Write{Delay: math.MaxInt64}},
			{"At", deferral.Write{Delay: 1, At: now}},
			{"At", deferral.Write{At: time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC)}},
			{"At", deferral.Write{At: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}},
		} {
			for way, accept := range accepts {
				err := accept(b, tt.w)
				if !errors.Is(err, deferral.ErrInvalid) || !strings.Contains(err.Error(), tt.field) && way == "push" {
					t.Errorf("%s with a bad %s: %v", way, tt.field, err)
				}
			}
		}
		if n := len(b.contents()); n != 0 {
			t.Errorf("%d keys", n)
		}
	})
}

func TestBadNumbersAreRefused(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ctx := t.Context()
		b.push("r", "a")
		for _, num := range []int{0, -1, 1001, math.MaxInt, math.MinInt} {
			if ds, err := b.q.Pop(ctx, num, 0); !errors.Is(err, deferral.ErrInvalid) || ds != nil {
				t.Errorf("pop %d: %v, %v", num, ds, err)
			}
		}
		for _, previous := range []time.Duration{-1, math.MinInt64, math.MaxInt64} {
			if ds, err := b.q.Pop(ctx, 1, previous); !errors.Is(err, deferral.ErrInvalid) || ds != nil {
				t.Errorf("pop with previous %v: %v, %v", previous, ds, err)
			}
		}
		for _, shard := range []int{-1, 1, math.MaxInt} {
			if _, err := b.q.Due(ctx, shard, 1, 0, 0); !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("shard %d: %v", shard, err)
			}
		}
		if due := b.due(-1, 0); len(due.Lanes) != 0 {
			t.Errorf("-1 lanes: %q", due.Lanes)
		}
		turn := b.enter("r", -1) // one at least
		b.wantStarted(turn, "a:1")
		b.settle(turn, 0, verdict(turn, deferral.Return, 0)...)
		d := b.pop(1, 0)[0]
		for _, after := range []time.Duration{-1, math.MaxInt64} {
			if err := d.Retry(ctx, after, nil); !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("retry after %v: %v", after, err)
			}
		}
		b.ack(d)
	})
}

// cancellable are the calls that take a context, each on what prepare made.
var cancellable = map[string]func(b *bench, turn *deferral.Turn) func(context.Context) error{
	"push": func(b *bench, _ *deferral.Turn) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.q.Push(ctx, write("r", "new")); return err }
	},
	"admit": func(b *bench, _ *deferral.Turn) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.q.Admit(ctx, write("r", "new")); return err }
	},
	"look": func(b *bench, _ *deferral.Turn) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.q.Due(ctx, 0, 1, 0, 0); return err }
	},
	"enter": func(b *bench, _ *deferral.Turn) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.q.Enter(ctx, "s", 1, 0); return err }
	},
	"pop": func(b *bench, _ *deferral.Turn) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.q.Pop(ctx, 1, 0); return err }
	},
	"settle": func(_ *bench, turn *deferral.Turn) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := turn.Settle(ctx, deferral.Settlement{Verdicts: verdict(turn, deferral.Failed, 0), GoOn: deferral.Always})
			return err
		}
	},
	"ack": func(_ *bench, turn *deferral.Turn) func(context.Context) error {
		return turn.Deliveries()[0].Ack
	},
}

func TestCallUnderAnEndedContextDoesNothing(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		because := errors.New("because")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(because)
		b.push("r", "a", "b")
		b.push("s", "c")
		turn := b.enter("r", 1)
		before := b.contents()
		for what, prepare := range cancellable {
			err := prepare(b, turn)(ctx)
			if !errors.Is(err, context.Canceled) || !errors.Is(err, because) || errors.Is(err, deferral.ErrUnclear) {
				t.Errorf("%s: %v", what, err)
			}
		}
		wantSame(t, before, b.contents())
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		b.drain("r")
		b.drain("s")
	})
}

// The context ends while the request is on its way: it may arrive later, and
// does here. The error must say so, and what arrives must do no harm.
func TestCallWhoseContextEndsOnTheWayIsUnclear(t *testing.T) {
	for what, prepare := range cancellable {
		t.Run(what, func(t *testing.T) {
			onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
				p := redistest.NewProxy(t, b.s)
				b.q = b.another(p.Client(t))
				b.push("r", "warm", "up")
				b.drain("r")
				b.settle(b.granted("r", "x"), 0)
				b.due(0, 0)
				b.push("r", "a", "b")
				b.push("s", "c")
				turn := b.enter("r", 1)
				call := prepare(b, turn)
				arrived, release := p.HoldRequest("evalsha")
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				err := call(ctx)
				<-arrived
				if !errors.Is(err, deferral.ErrUnclear) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				before := b.s.Commands(t)
				release()
				redistest.Wait(t, "the late request", func() bool { return b.s.Commands(t) > before })
				turn.Lease().End()
				want := "a b"
				switch what {
				case "push", "admit": // repeated, as its caller was told to
					if err := call(t.Context()); err != nil {
						t.Error(err)
					}
					want = "a b new"
				case "ack":
					want = "b"
				}
				for lane, want := range map[string]string{"r": want, "s": "c"} {
					b.del("lock:" + lane) // expired, also if it is the late request that has taken it
					if got := b.drain(lane); got != want {
						t.Errorf("%s ran %q, want %q", lane, got, want)
					}
				}
			})
		})
	}
}

// The moment of a lane was put far ahead, and nobody looked at it again.
func TestNegativeLookbackIsRefused(t *testing.T) {
	b := newBench(t, redistest.Mini(t), deferral.Config{})
	b.push("r", "a")
	turn := b.enter("r", 1)
	_, due := b.q.Due(t.Context(), 0, 1, -time.Hour, 0)
	_, enter := b.q.Enter(t.Context(), "other", 1, -1)
	_, settle := turn.Settle(t.Context(), deferral.Settlement{Lookback: -1, GoOn: deferral.Always})
	for name, err := range map[string]error{"Due": due, "Enter": enter, "Settle": settle} {
		if !errors.Is(err, deferral.ErrInvalid) || !strings.Contains(err.Error(), "lookback") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
}

// What is not ours among the writes for later stopped every look at the shard.
func TestStrangeNameAmongTheWritesForLaterIsTorn(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		for _, name := range []string{"no zero byte", "", "\x00"} {
			if err := b.rdb.ZAdd(t.Context(), b.key("later"), redis.Z{Score: 1, Member: name}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		due, err := b.q.Due(t.Context(), 0, 10, 0, 0)
		if err != nil || len(due.Lanes) != 1 || len(due.Torn) != 3 {
			t.Errorf("%+v, %v: want the lane, and three that are torn", due, err)
		}
		if order := b.drain("r"); order != "a" {
			t.Errorf("ran %q", order)
		}
	})
}
