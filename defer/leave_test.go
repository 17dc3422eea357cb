package deferral_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

func TestReturnedWriteIsNotCounted(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		for range 3 {
			turn := b.enter("r", 2)
			b.wantStarted(turn, "a:1 b:1")
			b.settle(turn, 0, verdict(turn, deferral.Return, 0)...)
		}
		turn := b.enter("r", 2)
		vs := verdict(turn, deferral.Return, time.Hour)
		b.settle(turn, 2, vs...)
		b.refused("r")
	})
}

func TestFailedWriteIsCountedAndKeepsItsCause(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		long := strings.Repeat("é", 300)
		for n, cause := range []string{"", "no such account\r\n1 2 3", long} {
			turn := b.enter("r", 1)
			d := turn.Deliveries()[0]
			if d.Attempt != n+1 {
				t.Errorf("attempt %d is %d", n+1, d.Attempt)
			}
			b.settle(turn, 0, deferral.Verdict{Delivery: d, Fate: deferral.Failed, Cause: cause})
			turn = b.enter("r", 1)
			if got := turn.Deliveries()[0].Cause; got != cause && got != strings.Repeat("é", 256) {
				t.Errorf("the cause was %q and is %q", cause, got)
			}
			b.settle(turn, 0, verdict(turn, deferral.Return, 0)...)
			turn = b.enter("r", 1)
			b.settle(turn, 0, deferral.Verdict{Delivery: turn.Deliveries()[0], Fate: deferral.Return, Cause: cause})
		}
	})
}

func TestWriteThatStepsAsideLetsItsLaneGoOn(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		turn := b.enter("r", 1)
		if got := b.settle(turn, 1, verdict(turn, deferral.Aside, 30*time.Millisecond)...); got != "b:1" {
			t.Fatalf("then %q", got)
		}
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
		b.settle(b.granted("r", "c"), 0) // the lane is free
		redistest.Wait(t, "a to come back", func() bool { return len(b.due(1, 0).Lanes) == 1 })
		turn = b.enter("r", 1)
		b.wantStarted(turn, "a:2")
		if got := turn.Deliveries()[0].Cause; got != "cause" {
			t.Errorf("cause %q", got)
		}
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
	})
}

func TestHaltedWriteStopsItsLaneUntilItIsResumed(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		turn := b.enter("r", 1)
		if got := b.settle(turn, 5, verdict(turn, deferral.Halted, 0)...); got != "" {
			t.Fatalf("then %q", got)
		}
		b.refused("r")
		b.deferred("r", "c", deferral.Paused)
		b.push("r", "d")
		if due := b.wantDue(0); due.Next >= 0 {
			t.Errorf("next look in %v", due.Next)
		}
		if err := b.q.Resume(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		b.wantDue(0, "r")
		if got := b.drain("r"); got != "a b c d" {
			t.Errorf("ran %q", got)
		}
	})
}

func TestOldestDeadLetterMakesRoomForANewOne(t *testing.T) {
	onBoth(t, deferral.Config{MaxDead: 2}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b", "c", "d")
		for b.depth("r") > 0 {
			turn := b.enter("r", 1)
			b.settle(turn, 0, verdict(turn, deferral.Buried, 0)...)
		}
		if got := b.rdb.ZRange(t.Context(), b.key("dead"), 0, -1).Val(); fmt.Sprintf("%q", got) != `["r\x00c" "r\x00d"]` {
			t.Errorf("dead are %q", got)
		}
	})
}

func TestDirectWriteThatFailedTakesTheHeadOfItsLane(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		turn := b.granted("r", "a")
		b.push("r", "b")
		enter := deferral.Verdict{Delivery: turn.Direct(write("r", "a")), Fate: deferral.Entered, Rest: time.Hour, Cause: "cause"}
		s, err := turn.Settle(t.Context(), deferral.Settlement{Verdicts: []deferral.Verdict{enter}, Next: 5, GoOn: deferral.Always})
		if err != nil || !s.Entered || s.More || s.Depth != 2 {
			t.Errorf("%+v, %v", s, err)
		}
		if got := b.lane("r"); got != "a b" {
			t.Errorf("the lane has %q", got)
		}
		b.refused("r")
		b.wantDue(0)

		// Without a rest it is tried again under the same lock.
		turn = b.granted("s", "x")
		b.push("s", "y")
		enter = deferral.Verdict{Delivery: turn.Direct(write("s", "x")), Fate: deferral.Entered}
		if got := b.settle(turn, 5, enter); got != "x:2" {
			t.Errorf("started %q", got)
		}
		if got := b.settle(turn, 5, verdict(turn, deferral.Done, 0)...); got != "y:1" {
			t.Errorf("started %q", got)
		}
		b.settle(turn, 5, verdict(turn, deferral.Done, 0)...)
	})
}

// While a write ran directly its ID was pushed with another payload. When it
// failed it was said to be in the queue; what was there was the other.
func TestDirectWriteIsNotTakenForAnotherOfTheSameID(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		for _, same := range []bool{true, false} {
			turn := b.granted("r", "a")
			other := write("r", "a")
			if !same {
				other.Payload = []byte("another")
			}
			if _, err := b.q.Push(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			enter := deferral.Verdict{Delivery: turn.Direct(write("r", "a")), Fate: deferral.Entered}
			s, err := turn.Settle(t.Context(), deferral.Settlement{Verdicts: []deferral.Verdict{enter}})
			if err != nil || s.Entered != same {
				t.Errorf("with the same payload: %v; entered %v, %v", same, s.Entered, err)
			}
			if got := b.drain("r"); got != "a" {
				t.Errorf("ran %q", got)
			}
		}
	})
}

func TestWithoutTheLockOnlyWhatTookEffectIsHeard(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ctx := t.Context()
		b.push("r", "a", "b", "c")
		ds, err := b.q.Pop(ctx, 1, 0)
		if err != nil || len(ds) != 1 {
			t.Fatalf("%v, %v", ds, err)
		}
		b.del("lock:r")
		before := b.contents()
		if err := ds[0].Retry(ctx, time.Hour, nil); !errors.Is(err, deferral.ErrLost) {
			t.Errorf("retry: %v", err)
		}
		if err := ds[0].Bury(ctx, nil); !errors.Is(err, deferral.ErrLost) {
			t.Errorf("bury: %v", err)
		}
		if err := ds[0].Extend(ctx); !errors.Is(err, deferral.ErrLost) {
			t.Errorf("extend: %v", err)
		}
		wantSame(t, before, b.contents())
		for range 2 {
			if err := ds[0].Ack(ctx); err != nil {
				t.Errorf("ack: %v", err)
			}
		}
		if got := b.lane("r"); got != "b c" {
			t.Errorf("the lane has %q", got)
		}
		// What was never run goes back uncounted, unless somebody has it by now.
		late := b.enter("r", 1)
		vs := verdict(late, deferral.Return, 0)
		b.crash(late)
		if s, err := late.Settle(ctx, deferral.Settlement{Verdicts: vs}); err != nil || s.Held {
			t.Errorf("%+v, %v", s, err)
		}
		turn := b.enter("r", 1)
		b.wantStarted(turn, "b:1")
		before = b.contents()
		if s, err := late.Settle(ctx, deferral.Settlement{Verdicts: vs}); err != nil || s.Held {
			t.Errorf("%+v, %v", s, err)
		}
		wantSame(t, before, b.contents())
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
	})
}

func TestWriteWithoutVerdictIsDeliveredAgainUncounted(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b", "c")
		turn := b.enter("r", 2)
		if got := b.settle(turn, 2, verdict(turn, deferral.Done, 0)[0]); got != "b:1" {
			t.Errorf("started %q", got)
		}
		if got := b.settle(turn, 2, verdict(turn, deferral.Done, 0)...); got != "c:1" {
			t.Errorf("started %q", got)
		}
		b.settle(turn, 2, verdict(turn, deferral.Done, 0)...)
	})
}

func TestTurnGoesOnOnlyAsItIsTold(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		hour := time.Hour
		for _, tt := range []struct {
			goOn     deferral.GoOn
			lookback time.Duration
			next     int
			others   bool
			want     string
		}{
			{deferral.Always, hour, 1, true, "b:1"},
			{deferral.Always, 0, 0, false, ""},
			{deferral.Always, 0, -1, false, ""},
			{deferral.IfDue, hour, 1, false, ""},
			{deferral.IfDue, 0, 1, true, "b:1"},
			{deferral.IfAlone, 0, 1, false, "b:1"},
			{deferral.IfAlone, 0, 1, true, ""},
			{deferral.IfAlone, hour, 1, true, "b:1"}, // the other is not due yet
		} {
			turn := b.granted("r", "a")
			b.deferred("r", "b", deferral.Held)
			if tt.others {
				b.push("s", "x")
			}
			s := deferral.Settlement{Next: tt.next, GoOn: tt.goOn, Lookback: tt.lookback}
			if got := b.settleAs(turn, s); got != tt.want {
				t.Errorf("%+v: started %q", tt, got)
			}
			if len(turn.Deliveries()) > 0 {
				b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
			}
			b.drain("r")
			b.drain("s")
		}
	})
}

func TestBatchIsBoundedInWritesAndBytes(t *testing.T) {
	s := redistest.Real(t)
	b := newBench(t, s, deferral.Config{MaxPayload: 8 << 20})
	for i, size := range []int{3 << 20, 1 << 19, 1 << 20, 7 << 20, 7 << 20, 1, 1} {
		if _, err := b.q.Push(t.Context(), deferral.Write{Resource: "r", ID: fmt.Sprint(i), Payload: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
	}
	turn := b.enter("r", 100)
	for _, want := range []string{"0:1 1:1", "2:1", "3:1", "4:1", "5:1 6:1"} {
		b.wantStarted(turn, want)
		b.settle(turn, 100, verdict(turn, deferral.Done, 0)...)
	}
	for i := range 2500 {
		if _, err := b.q.Push(t.Context(), deferral.Write{Resource: "r", ID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	turn = b.enter("r", 1_000_000)
	for _, want := range []int{deferral.MaxBatch, deferral.MaxBatch, 500} {
		if got := len(turn.Deliveries()); got != want {
			t.Errorf("%d writes in a batch, want %d", got, want)
		}
		b.settle(turn, 1_000_000, verdict(turn, deferral.Done, 0)...)
	}
	b.audit()
}

func TestNudgesSayWhenALookIsWorthWhile(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		sub := b.rdb.Subscribe(ctx, b.q.Nudges()...)
		defer sub.Close()
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		nudged := func(what string, want time.Duration) {
			t.Helper()
			m, err := sub.ReceiveMessage(ctx)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			got, err := time.ParseDuration(m.Payload + "us")
			if err != nil || got > want || got < want-time.Minute {
				t.Errorf("%s: nudged to look in %q, want %v", what, m.Payload, want)
			}
		}
		b.push("r", "a", "b")
		nudged("the first write of a lane", 0)
		if _, err := b.q.Push(ctx, deferral.Write{Resource: "s", Delay: 2 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		nudged("a write for later", 2*time.Hour)
		turn := b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		nudged("a lane given back while it is drained", 0)
		turn = b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Failed, 3*time.Hour)...)
		nudged("a head that rests", 3*time.Hour)
		turn = b.granted("t", "a")
		b.deferred("t", "b", deferral.Held)
		b.settleAs(turn, deferral.Settlement{GoOn: deferral.IfDue, Lookback: time.Hour})
		nudged("a direct write that leaves others behind", time.Hour)
		turn = b.enter("t", 1)
		b.settle(turn, 0, verdict(turn, deferral.Aside, 4*time.Hour)...)
		nudged("a write that steps aside", 4*time.Hour)
		b.push("u", "a")
		nudged("nothing else in between", 0)
	})
}

// A verdict belongs to one start. A copy of it that arrived late was applied to
// the next start too, by whoever made that.
func TestCopyOfAVerdictDoesNotTouchTheNextStart(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		b.q = b.another(p.Client(t))
		b.push("warm", "a")
		b.drain("warm")
		p.Record(b.key("lane:r"))
		for _, fate := range []deferral.Fate{deferral.Return, deferral.Failed, deferral.Aside, deferral.Buried, deferral.Halted} {
			b.push("r", "a")
			turn := b.enter("r", 1)
			p.Reset()
			b.settle(turn, 0, verdict(turn, fate, 0)...)
			copied := p.Captured()[0]
			switch fate {
			case deferral.Aside:
				b.due(10, 0)
			case deferral.Buried:
				if err := b.q.Revive(t.Context(), "r", "a"); err != nil {
					t.Fatal(err)
				}
			case deferral.Halted:
				if err := b.q.Resume(t.Context(), "r"); err != nil {
					t.Fatal(err)
				}
			}
			turn = b.enter("r", 1)
			before := b.contents()
			p.Replay(t, copied)
			wantSame(t, before, b.contents())
			b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		}
	})
}
