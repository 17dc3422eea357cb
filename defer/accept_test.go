package deferral_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// The two ways to accept a write.
var accepts = map[string]func(b *bench, w deferral.Write) error{
	"push": func(b *bench, w deferral.Write) error {
		_, err := b.q.Push(b.t.Context(), w)
		return err
	},
	"admit": func(b *bench, w deferral.Write) error {
		_, err := b.q.Admit(b.t.Context(), w)
		return err
	},
}

// place puts the write "a" of "r" somewhere.
var places = map[string]func(b *bench){
	"in its lane": func(b *bench) { b.push("r", "a") },
	"for later": func(b *bench) {
		w := write("r", "a")
		w.Delay = time.Hour
		if _, err := b.q.Push(b.t.Context(), w); err != nil {
			b.t.Fatal(err)
		}
	},
	"aside": func(b *bench) {
		b.push("r", "a")
		turn := b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Aside, time.Hour)...)
	},
	"dead": func(b *bench) {
		b.push("r", "a")
		turn := b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Buried, 0)...)
	},
}

func TestSameWriteAgainChangesNothing(t *testing.T) {
	for place, put := range places {
		for way, accept := range accepts {
			t.Run(place+"/"+way, func(t *testing.T) {
				onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
					put(b)
					before := b.contents()
					var want error
					if place == "dead" {
						want = deferral.ErrDead
					}
					for range 2 {
						w := write("r", "a")
						w.Meta = map[string]string{"trace": "another"}
						if err := accept(b, w); !errors.Is(err, want) {
							t.Errorf("again: %v, want %v", err, want)
						}
					}
					for _, w := range []deferral.Write{
						{Resource: "r", ID: "a", Payload: []byte("another")},
						{Resource: "r", ID: "a", Payload: write("r", "a").Payload, Kind: "another"},
					} {
						if err := accept(b, w); !errors.Is(err, deferral.ErrMismatch) {
							t.Errorf("with another payload or kind: %v", err)
						}
					}
					wantSame(t, before, b.contents())
				})
			})
		}
	}
}

func TestFullLaneStoresNothing(t *testing.T) {
	onBoth(t, deferral.Config{MaxDepth: 2}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		before := b.contents()
		for way, accept := range accepts {
			if err := accept(b, write("r", "c")); !errors.Is(err, deferral.ErrLaneFull) {
				t.Errorf("%s into a full lane: %v", way, err)
			}
			if err := accept(b, write("r", "b")); err != nil {
				t.Errorf("%s what is there already: %v", way, err)
			}
		}
		if _, err := b.q.Push(t.Context(), deferral.Write{Resource: "r", Delay: time.Hour}); !errors.Is(err, deferral.ErrLaneFull) {
			t.Errorf("push for later: %v", err)
		}
		wantSame(t, before, b.contents())
		b.push("s", "c")
		turn := b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		b.push("r", "c")
	})
}

func TestPayloadIsKeptExactlyUpToItsBound(t *testing.T) {
	onBoth(t, deferral.Config{MaxPayload: 1000}, func(t *testing.T, b *bench) {
		for i, payload := range [][]byte{nil, {}, {0}, []byte("\xff\x00\r\n$5"), bytes.Repeat([]byte{0xfe}, 1000)} {
			w := deferral.Write{Resource: "r", ID: fmt.Sprint(i), Kind: "k\x00", Payload: payload, Meta: map[string]string{"": "", "\xff": "\x00"}}
			if _, err := b.q.Push(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			turn := b.enter("r", 1)
			d := turn.Deliveries()[0]
			if d.Err != nil || !bytes.Equal(d.Payload, payload) || d.Kind != "k\x00" || d.Meta["\xff"] != "\x00" || len(d.Meta) != 2 {
				t.Errorf("payload %q came as %q, kind %q, meta %q, %v", payload, d.Payload, d.Kind, d.Meta, d.Err)
			}
			b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		}
		before := b.contents()
		for way, accept := range accepts {
			if err := accept(b, deferral.Write{Resource: "r", Payload: make([]byte, 1001)}); !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("%s a payload over the bound: %v", way, err)
			}
		}
		wantSame(t, before, b.contents())
	})
}

func TestAdmissionSaysWhyAWriteWaits(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ctx := t.Context()
		turn := b.granted("r", "a")
		a := b.deferred("r", "b", deferral.Held)
		if a.ID != "b" || a.Ahead != 0 || a.HeldFor <= 0 || a.HeldFor > time.Minute || a.Attended {
			t.Errorf("%+v", a)
		}
		if _, err := b.q.Due(ctx, 0, 0, 0, time.Minute); err != nil {
			t.Fatal(err)
		}
		if a = b.deferred("r", "c", deferral.Held); a.Ahead != 1 || !a.Attended {
			t.Errorf("%+v", a)
		}
		if a = b.deferred("r", "b", deferral.Already); a.Ahead != 0 {
			t.Errorf("%+v", a)
		}
		b.settle(turn, 0)
		if a = b.deferred("r", "d", deferral.Behind); a.Ahead != 2 || a.HeldFor != 0 {
			t.Errorf("%+v", a)
		}
		if err := b.q.Pause(ctx, "p", "reason"); err != nil {
			t.Fatal(err)
		}
		b.deferred("p", "a", deferral.Paused)
		b.refused("p")
		if err := b.q.Resume(ctx, "p"); err != nil {
			t.Fatal(err)
		}
		b.rdb.Set(ctx, b.key("lock:e"), "somebody else's", 0)
		if a = b.deferred("e", "a", deferral.Held); a.HeldFor >= 0 {
			t.Errorf("behind a lock without an end: %+v", a)
		}
		b.del("lock:e")
		for _, lane := range []string{"r", "p", "e"} {
			b.drain(lane)
		}
	})
}

func TestWriteWithoutIDGetsOne(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ids := map[string]bool{}
		for range 3 {
			id, err := b.q.Push(t.Context(), deferral.Write{Resource: "r"})
			if err != nil || id == "" || ids[id] {
				t.Fatalf("%q, %v", id, err)
			}
			ids[id] = true
		}
		turn := b.enter("r", 3)
		for _, d := range turn.Deliveries() {
			if !ids[d.ID] {
				t.Errorf("delivered %q, pushed %v", d.ID, ids)
			}
		}
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
	})
}

func TestWriteForLaterIsDueAtItsTimeByRedisClock(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ctx, soon := t.Context(), 60*time.Millisecond
		began := b.now()
		for id, w := range map[string]deferral.Write{
			"delay": {Delay: soon}, "at": {At: began.Add(soon)},
			"past": {At: began.Add(-time.Hour)}, "far": {Delay: time.Hour},
		} {
			w.ID, w.Resource = id, id
			if _, err := b.q.Push(ctx, w); err != nil {
				t.Fatal(err)
			}
		}
		got := map[string]bool{}
		redistest.Wait(t, "what is due soon", func() bool {
			ds, err := b.q.Pop(ctx, 10, 0)
			for _, d := range ds {
				got[d.ID] = true
				if after := b.now().Sub(began); after < soon && d.ID != "past" {
					t.Errorf("%s came after %v", d.ID, after)
				}
				if err := d.Ack(ctx); err != nil {
					t.Error(err)
				}
			}
			return err == nil && len(got) == 3
		})
		if got["far"] {
			t.Error("an hour has passed in no time")
		}
		if due := b.wantDue(0); due.Next < 59*time.Minute || due.Next > time.Hour {
			t.Errorf("next look in %v", due.Next)
		}
	})
}

func TestWriteThatCannotRunNowIsNotAdmitted(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		for _, w := range []deferral.Write{{Resource: "r", Delay: 1}, {Resource: "r", At: time.Now()}} {
			if _, err := b.q.Admit(t.Context(), w); !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("%+v: %v", w, err)
			}
		}
		if n := len(b.contents()); n != 0 {
			t.Errorf("%d keys", n)
		}
	})
}

func TestCallsWithAnotherNumberOfShardsAreRefused(t *testing.T) {
	onBoth(t, deferral.Config{Shards: 2}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		before := b.contents()
		b.cfg.Shards = 3
		other := b.another(b.rdb)
		for what, call := range map[string]func() error{
			"push":  func() error { _, err := other.Push(t.Context(), write("r", "b")); return err },
			"admit": func() error { _, err := other.Admit(t.Context(), write("r", "b")); return err },
			"look":  func() error { _, err := other.Due(t.Context(), 0, 1, 0, 0); return err },
			"pop":   func() error { _, err := other.Pop(t.Context(), 1, 0); return err },
		} {
			for range 2 {
				if err := call(); !errors.Is(err, deferral.ErrShards) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		wantSame(t, before, b.contents())
	})
}
