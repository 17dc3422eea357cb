package deferral_test

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// The interleavings that broke the index of lanes, or the step from one holder
// to the next; see interleavings_test.go.

// 8. A draft put the lane into the index with ZADD NX: a write for later was
// there first, and hid one for now for an hour.
func TestInterleaving8WriteForLaterDoesNotHideOneForNow(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		if _, err := b.q.Push(t.Context(), deferral.Write{Resource: "r", ID: "later", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if due := b.wantDue(0); due.Next < 59*time.Minute {
			t.Errorf("next look in %v", due.Next)
		}
		b.push("r", "now")
		b.wantDue(0, "r")
		if got := b.drain("r"); got != "now" {
			t.Errorf("ran %q", got)
		}
		// The same with an entry that a script which was stopped has left behind.
		future := float64(b.now().Add(time.Hour).UnixMicro())
		if err := b.rdb.ZAdd(t.Context(), b.key("due"), redis.Z{Score: future, Member: "r"}).Err(); err != nil {
			t.Fatal(err)
		}
		b.push("r", "again")
		b.wantDue(0, "r")
		b.drain("r")
	})
}

// 9. Release and leave were two commands. Released first, the lock was free
// before the next writes could be handed over.
func TestInterleaving9LockIsNeverFreeBetweenOneBatchAndTheNext(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		b.q = b.another(p.Client(t))
		b.push("r", "a", "b")
		turn := b.enter("r", 1)
		fence, token := turn.Lease().Fence(), turn.Lease().Token()
		b.settle(b.granted("s", "x"), 0) // the script is known from here on
		p.Reset()
		if got := b.settle(turn, 1, verdict(turn, deferral.Done, 0)...); got != "b:1" {
			t.Fatalf("handed over %q", got)
		}
		if n := p.Requests(); n != 1 {
			t.Errorf("%d commands", n)
		}
		if b.holder("r") != token || turn.Lease().Fence() <= fence {
			t.Errorf("the lock is held by %q, want %q; fence %d after %d", b.holder("r"), token, turn.Lease().Fence(), fence)
		}
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
	})
}

// 9, continued. Left first, the lane's true moment was in the index while the
// lock still stood: another process was refused, moved the moment to the lock's
// end, and the lane waited for a TTL.
func TestInterleaving9LaneIsFreeAsSoonAsItIsInTheIndex(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		p := redistest.NewProxy(t, b.s)
		b.settle(b.granted("s", "x"), 0)
		turn, err := b.another(p.Client(t)).Enter(t.Context(), "r", 1, 0)
		if err != nil || turn == nil {
			t.Fatalf("%v, %v", turn, err)
		}
		release := p.HoldReply(b.key("lane:r"))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := turn.Settle(t.Context(), deferral.Settlement{GoOn: deferral.Always, Verdicts: verdict(turn, deferral.Done, 0)}); err != nil {
				t.Error(err)
			}
		})
		redistest.Wait(t, "the first command of leaving", func() bool { return b.depth("r") == 1 })
		b.wantDue(0, "r")
		next := b.enter("r", 1)
		b.wantStarted(next, "b:1")
		b.settle(next, 0, verdict(next, deferral.Done, 0)...)
		release()
		wg.Wait()
	})
}

// 10. Leaving restored the moment of the lane's head, whatever that had been
// told, and so erased its back-off: it failed, was due at once, and failed.
func TestInterleaving10LeavingKeepsTheHeadsBackOff(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		turn := b.enter("r", 1)
		if got := b.settle(turn, 5, verdict(turn, deferral.Failed, time.Hour)...); got != "" {
			t.Fatalf("started %q", got)
		}
		for range 2 {
			if due := b.wantDue(0); due.Next < 59*time.Minute || due.Next > time.Hour {
				t.Errorf("the next look is in %v", due.Next)
			}
			b.refused("r")
			b.deferred("r", "b", deferral.Already)
			b.push("r", "c")
		}
		b.wantDue(0)
	})
}
