package deferral_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// The interleavings that broke earlier drafts of the protocol, numbered as on
// the page that tells of them. Each test says what the draft did, and fails when
// the draft is put back.

// 1. A draft obtained the lock, looked at the lane with a second command, and
// gave the lock back if something waited there. A late copy of the second
// command found the token that had won and a lane with a write in it, and
// deleted the lock under the running holder.
func TestInterleaving1LateAdmissionDoesNotDeleteTheRunningHoldersLock(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		p.Record(b.key("lane:r"))
		b.q = b.another(p.Client(t))
		turn := b.granted("r", "a")
		b.deferred("r", "b", deferral.Held)
		for _, raw := range p.Captured() {
			p.Replay(t, raw)
			if got := b.holder("r"); got != turn.Lease().Token() {
				t.Fatalf("after a late copy the lock is held by %q", got)
			}
		}
		if got := b.lane("r"); got != "b" {
			t.Errorf("the lane has %q", got)
		}
		b.settle(turn, 0)
		if got := b.drain("r"); got != "b" {
			t.Errorf("ran %q", got)
		}
	})
}

// 1, continued. With no fault at all: while the draft held the lock for a
// moment, to find that something waits, another process was refused it and moved
// the lane's moment to the end of a lock that was then given back at once. The
// lane waited for a whole TTL.
func TestInterleaving1AdmissionBehindOthersNeverTakesTheLock(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		p := redistest.NewProxy(t, b.s)
		q := b.another(p.Client(t))
		if _, err := q.Due(t.Context(), 0, 0, 0, 0); err != nil { // all but the admission is done
			t.Fatal(err)
		}
		if _, err := q.Admit(t.Context(), write("r", "b")); err != nil { // and Redis knows its script
			t.Fatal(err)
		}
		release := p.HoldReply(b.key("lock:r"))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := q.Admit(t.Context(), write("r", "c")); err != nil {
				t.Error(err)
			}
		})
		// Its first command has been carried out, and no other will be.
		redistest.Wait(t, "the admission", func() bool { return b.depth("r") == 3 || b.holder("r") != "" })
		b.wantDue(0, "r")
		turn := b.enter("r", 3)
		b.wantStarted(turn, "a:1 b:1 c:1")
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		release()
		wg.Wait()
	})
}

// 2. {A, B} were claimed, A took effect, the process died. A draft that skipped
// a batch of which a part had taken effect lost B; one that ran it again applied
// A twice. The queue's part is to deliver both again, each alone and by the name
// it had before, so that the database can tell. What the database does is tested
// in pgfence.
func TestInterleaving2BatchIsDeliveredAgainOneByOneAfterCrash(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b", "c")
		turn := b.enter("r", 2)
		b.wantStarted(turn, "a:1 b:1")
		stamps := fmt.Sprint(turn.Deliveries()[0].Stamp(), turn.Deliveries()[1].Stamp())
		b.crash(turn)

		turn = b.enter("r", 10)
		b.wantStarted(turn, "a:2")
		again := fmt.Sprint(turn.Deliveries()[0].Stamp())
		if got := b.settle(turn, 10, verdict(turn, deferral.Done, 0)...); got != "b:2" {
			t.Fatalf("after a: %q", got)
		}
		if again += " " + fmt.Sprint(turn.Deliveries()[0].Stamp()); again != stamps {
			t.Errorf("stamps %s, were %s", again, stamps)
		}
		if got := b.settle(turn, 10, verdict(turn, deferral.Done, 0)...); got != "c:1" {
			t.Fatalf("after b: %q", got)
		}
		b.settle(turn, 10, verdict(turn, deferral.Done, 0)...)
	})
}

// 3. A holder that was paused inside its transaction kept its row lock in
// Postgres, and the next one waited for ever. Freeing the row is pgfence's part.
// The queue's is that the next one gets in with a greater fence as soon as the
// lock has expired, and that the late holder changes nothing when it wakes.
func TestInterleaving3PausedHolderCannotMoveTheLaneWhenItWakes(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		late := b.enter("r", 1)
		d := late.Deliveries()[0]
		b.crash(late)
		turn := b.enter("r", 1)
		if late, next := late.Lease().Fence(), turn.Lease().Fence(); next <= late {
			t.Errorf("the fence of the late holder is %d, of the next %d", late, next)
		}
		before := b.contents()
		for _, fate := range []deferral.Fate{deferral.Failed, deferral.Aside, deferral.Buried, deferral.Halted, deferral.Return, deferral.Entered} {
			s, err := late.Settle(t.Context(), deferral.Settlement{
				Next: 5, GoOn: deferral.Always,
				Verdicts: []deferral.Verdict{{Delivery: d, Fate: fate, Rest: time.Hour, Cause: "late"}},
			})
			if err != nil || s.Held || s.More {
				t.Errorf("%s by the late holder: %+v, %v", fate, s, err)
			}
		}
		wantSame(t, before, b.contents())
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		if got := b.drain("r"); got != "b" {
			t.Errorf("ran %q", got)
		}
	})
}

// wantSame says that no key has changed.
func wantSame(t *testing.T, before, after map[string]string) {
	t.Helper()
	for k, v := range after {
		if before[k] != v {
			t.Errorf("%q was %q and is %q", k, before[k], v)
		}
	}
	for k := range before {
		if _, there := after[k]; !there {
			t.Errorf("%q is gone", k)
		}
	}
}

// stepBack sets Redis's clock 12 minutes back, as this queue sees it: what it
// remembers of the time is 12 minutes ahead of TIME.
func (b *bench) stepBack() {
	b.t.Helper()
	const back = 12 * time.Minute
	if m := b.s.Mini(); m != nil {
		m.SetTime(b.now().Add(-back))
		return
	}
	ctx := b.t.Context()
	for _, k := range b.rdb.Keys(ctx, b.key("lane:*")).Val() {
		for _, z := range b.rdb.ZRangeWithScores(ctx, k, 0, -1).Val() {
			b.rdb.ZIncrBy(ctx, k, float64(back.Microseconds()), z.Member.(string))
		}
	}
	for _, z := range b.rdb.ZRangeWithScores(ctx, b.key("due"), 0, -1).Val() {
		b.rdb.ZIncrBy(ctx, b.key("due"), float64(back.Microseconds()), z.Member.(string))
	}
	last, err := b.rdb.Get(ctx, b.key("clock")).Int64()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.rdb.Set(ctx, b.key("clock"), last+back.Microseconds(), 0).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// 4. The clock stepped back 12 minutes. A draft compared with bare TIME: what
// waited lay in the future and was not looked at, and newer writes were stamped
// before it and overtook.
func TestInterleaving4ClockThatStepsBackChangesNoOrderAndStopsNothing(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		turn := b.enter("r", 1)
		fence := turn.Lease().Fence()
		b.settle(turn, 0, verdict(turn, deferral.Failed, 0)...)
		b.stepBack()
		b.deferred("r", "b", deferral.Behind)
		b.push("r", "c")
		if got := b.lane("r"); got != "a b c" {
			t.Fatalf("the lane has %q", got)
		}
		b.wantDue(0, "r")
		turn = b.enter("r", 1)
		if got := turn.Lease().Fence(); got <= fence {
			t.Errorf("the fence was %d and is %d", fence, got)
		}
		if d := turn.Deliveries()[0]; d.Waited < 0 {
			t.Errorf("waited %v", d.Waited)
		}
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		if got := b.drain("r"); got != "b c" {
			t.Errorf("ran %q", got)
		}
	})
}

// 4, continued. Time also has to go on: with a lookback, a lane was not due
// before TIME had caught up, twelve minutes later, unless something was stamped
// in the meantime.
func TestInterleaving4LookbackEndsAlthoughTheClockSteppedBack(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		const lookback = 40 * time.Millisecond
		b.push("r", "a")
		b.stepBack()
		redistest.Wait(t, "the lane to be due", func() bool {
			if m := b.s.Mini(); m != nil { // whose clock stands still once it has been set
				m.SetTime(b.now().Add(5 * time.Millisecond))
			}
			return len(b.due(1, lookback).Lanes) == 1
		})
		if got := b.drain("r"); got != "a" {
			t.Errorf("ran %q", got)
		}
	})
}

// 5. A draft asked whether the payload was there to know whether a write was.
// SET had been done, ZADD was refused by an ACL, and the retry said "deferred":
// the lane was empty, and the write lost.
func TestInterleaving5PayloadAloneIsNoAcceptedWrite(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		turn := b.enter("r", 1)
		for _, key := range []string{"lane:r", "due"} { // what a refused ZADD leaves behind
			if err := b.rdb.ZRem(t.Context(), b.key(key), "b").Err(); err != nil {
				t.Fatal(err)
			}
		}
		b.deferred("r", "b", deferral.Held)
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		if got := b.drain("r"); got != "b" {
			t.Errorf("ran %q", got)
		}
		if err := b.rdb.Set(t.Context(), b.key("write:r\x00c"), "\x01\x00\x00\x00\x00\x00payload of c", 0).Err(); err != nil {
			t.Fatal(err)
		}
		b.push("r", "c")
		if got := b.drain("r"); got != "c" {
			t.Errorf("ran %q", got)
		}
	})
}

// 5, continued: as it happened, with the ACL.
func TestInterleaving5PushRefusedHalfWayIsNotTakenForDone(t *testing.T) {
	b := newBench(t, redistest.Real(t), deferral.Config{})
	ctx := t.Context()
	b.due(0, 0)
	if err := b.rdb.Do(ctx, "acl", "setuser", "u", "on", ">pw", "~*", "&*", "+@all", "-zadd").Err(); err != nil {
		t.Fatal(err)
	}
	q := b.another(b.s.ClientWith(t, func(o *redis.Options) { o.Username, o.Password = "u", "pw" }))
	for _, accept := range []func() error{
		func() error { _, err := q.Push(ctx, write("r", "a")); return err },
		func() error { _, err := q.Admit(ctx, deferral.Write{Resource: "r", ID: "b"}); return err },
	} {
		turn := b.granted("r", "x")
		for range 2 {
			if err := accept(); err == nil || errors.Is(err, deferral.ErrUnclear) {
				t.Errorf("without the right to ZADD: %v", err)
			}
		}
		b.rdb.Do(ctx, "acl", "setuser", "u", "+zadd")
		if err := accept(); err != nil {
			t.Error(err)
		}
		b.rdb.Do(ctx, "acl", "setuser", "u", "-zadd")
		b.settle(turn, 0)
		if got := b.depth("r"); got != 1 {
			t.Errorf("%d writes wait", got)
		}
		b.drain("r")
	}
	b.audit()
}

// 5, continued. Payloads were kept by ID alone, and the same ID on a second
// resource was silently dropped.
func TestInterleaving5SameIDOnTwoResourcesIsTwoWrites(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		for _, resource := range []string{"r", "s", ""} {
			if _, err := b.q.Push(t.Context(), deferral.Write{Resource: resource, ID: "a", Payload: []byte("of " + resource)}); err != nil {
				t.Fatal(err)
			}
		}
		ds, err := b.q.Pop(t.Context(), 10, 0)
		if err != nil || len(ds) != 3 {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		for _, d := range ds {
			if d.ID != "a" || string(d.Payload) != "of "+d.Resource {
				t.Errorf("%q on %q has %q", d.ID, d.Resource, d.Payload)
			}
			if err := d.Ack(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// 6. {A, B} were claimed and B killed its process, three times over. In the
// draft they were claimed together each time, and A, committed long ago, was
// counted and buried with B.
func TestInterleaving6WriteThatKillsItsProcessDoesNotBuryItsNeighbour(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b", "c")
		var runs []string
		for range 3 { // a process that takes effect with a and c, and dies of b
			turn := b.enter("r", 2)
			for alive := true; alive; {
				for _, d := range turn.Deliveries() {
					runs = append(runs, fmt.Sprintf("%s:%d", d.ID, d.Attempt))
					if alive = d.ID != "b"; !alive {
						b.crash(turn)
						break
					}
				}
				if alive {
					alive = b.settle(turn, 2, verdict(turn, deferral.Done, 0)...) != ""
				}
			}
		}
		if got, want := fmt.Sprint(runs), "[a:1 b:1 a:2 b:2 b:3]"; got != want {
			t.Errorf("ran %s, want %s", got, want)
		}
		turn := b.enter("r", 2)
		b.wantStarted(turn, "b:4")
		if got := b.settle(turn, 2, verdict(turn, deferral.Buried, 0)...); got != "c:1" {
			t.Errorf("behind b comes %q", got)
		}
		b.settle(turn, 2, verdict(turn, deferral.Done, 0)...)
	})
}

// 6, continued. The reply to the claim of a write that had been started before
// was lost. The claim came again under the same token, no longer knew that it
// had been alone, and started its neighbours too.
func TestInterleaving6RepeatedClaimStartsNoMoreThanTheFirst(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b", "c")
		b.crash(b.enter("r", 1))
		p := redistest.NewProxy(t, b.s)
		b.q = b.another(p.Client(t))
		p.DropReply(b.key("lane:r"), 2)
		turn := b.enter("r", 10)
		b.wantStarted(turn, "a:2")
		p.DropReply(b.key("lane:r"), 1)
		if got := b.settle(turn, 10, verdict(turn, deferral.Done, 0)...); got != "b:1 c:1" {
			t.Errorf("then %q", got)
		}
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
	})
}

// 7. A draft acknowledged by ID alone: an acknowledgement that came late deleted
// the same ID pushed anew.
func TestInterleaving7LateAckDoesNotDeleteNewerWriteOfTheSameID(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		ds, err := b.q.Pop(t.Context(), 1, 0)
		if err != nil || len(ds) != 1 {
			t.Fatalf("%v, %v", ds, err)
		}
		b.del("lock:r") // expired
		again := b.enter("r", 1)
		b.settle(again, 0, verdict(again, deferral.Done, 0)...)
		b.push("r", "a")
		before := b.contents()
		if err := ds[0].Ack(t.Context()); err != nil {
			t.Error(err)
		}
		wantSame(t, before, b.contents())
		if got := b.drain("r"); got != "a" {
			t.Errorf("ran %q", got)
		}
	})
}
