package deferral_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
)

func TestLaneKeepsItsOrderAcrossRetries(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ids := strings.Fields("j i h g f e d c b a") // not the order of their names
		b.push("r", ids...)
		var ran []string
		for n := 0; len(ran) < len(ids); n++ {
			turn := b.enter("r", 1+n%3)
			fate := deferral.Done
			if n%2 == 0 {
				fate = []deferral.Fate{deferral.Failed, deferral.Return}[n/2%2]
			}
			if fate == deferral.Done {
				for _, d := range turn.Deliveries() {
					ran = append(ran, d.ID)
				}
			}
			b.settle(turn, 0, verdict(turn, fate, 0)...)
		}
		if got, want := fmt.Sprint(ran), fmt.Sprint(ids); got != want {
			t.Errorf("ran %s, want %s", got, want)
		}
	})
}

func TestAdmissionGoesBehindWaitingWritesAlthoughTheLockIsFree(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		b.deferred("r", "b", deferral.Behind)
		turn := b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Failed, time.Hour)...)
		// While the head rests nothing runs, neither what waits nor what comes.
		b.deferred("r", "c", deferral.Behind)
		b.refused("r")
		if got := b.lane("r"); got != "a b c" {
			t.Errorf("the lane has %q", got)
		}
	})
}

func TestNewerWriteDoesNotOvertakeARestingOneBehindIt(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b", "c")
		turn := b.enter("r", 3)
		vs := verdict(turn, deferral.Done, 0)
		vs[1].Fate, vs[1].Rest = deferral.Failed, time.Hour
		vs[2].Fate = deferral.Return
		if got := b.settle(turn, 3, vs...); got != "" {
			t.Errorf("started %q before b", got)
		}
		if got := b.lane("r"); got != "b c" {
			t.Errorf("the lane has %q", got)
		}
	})
}

func TestWriteForLaterJoinsTheEndOfItsLane(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		for _, id := range []string{"first", "second"} {
			if _, err := b.q.Push(t.Context(), deferral.Write{Resource: "r", ID: id, Delay: time.Microsecond}); err != nil {
				t.Fatal(err)
			}
		}
		b.push("r", "now")
		b.wantDue(0, "r")
		b.push("r", "last")
		if got := b.drain("r"); got != "now first second last" {
			t.Errorf("ran %q", got)
		}
	})
}

// Both at once: what Redis remembered of the time is lost, and its clock has
// been set back. What waits keeps its order, and what ran before it stays before.
func TestOrderInALaneSurvivesALostClockAndAStepBack(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		turn := b.granted("s", "x")
		b.stepBack()
		b.del("clock")
		b.push("r", "c")
		b.deferred("r", "d", deferral.Behind)
		if got := b.drain("r"); got != "a b c d" {
			t.Errorf("ran %q", got)
		}
		b.push("s", "y")
		v := deferral.Verdict{Delivery: turn.Direct(write("s", "x")), Fate: deferral.Entered}
		b.settle(turn, 0, v)
		if got := b.drain("s"); got != "x y" {
			t.Errorf("ran %q", got)
		}
	})
}

func TestFenceRisesFromHolderToHolder(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		last := int64(0)
		rises := func(what string, fence int64) {
			t.Helper()
			if fence <= last {
				t.Errorf("%s: fence %d after %d", what, fence, last)
			}
			last = fence
		}
		for range 3 {
			turn := b.granted("r", "a")
			rises("granted", turn.Lease().Fence())
			b.deferred("r", "b", deferral.Held)
			b.push("r", "c")
			b.settle(turn, 1)
			rises("handed over", turn.Lease().Fence())
			if d := turn.Deliveries()[0]; d.Fence != turn.Lease().Fence() || d.Stamp() >= d.Fence {
				t.Errorf("fence %d, stamp %d, under a lease with %d", d.Fence, d.Stamp(), turn.Lease().Fence())
			}
			b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
			turn = b.enter("r", 1)
			rises("claimed", turn.Lease().Fence())
			b.crash(turn)
			turn = b.enter("r", 1)
			rises("claimed after a crash", turn.Lease().Fence())
			b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		}
	})
}

// Processes submit writes to one resource and others drain it, all at once. What
// took effect is noted under the lock and nowhere else, so that two at a time are
// a data race too.
func TestWritesOfManyProcessesTakeEffectOneByOneAndInOrder(t *testing.T) {
	const submitters, each = 4, 40
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		ctx := t.Context()
		var ran []string
		direct := 0
		settle := func(turn *deferral.Turn, s deferral.Settlement) bool {
			got, err := turn.Settle(ctx, s)
			if err != nil || !got.Held {
				t.Errorf("%+v, %v", got, err)
			}
			return got.More
		}
		var submitting, draining sync.WaitGroup
		for n := range submitters {
			q := b.another(b.s.Client(t))
			submitting.Go(func() {
				for i := range each {
					id := fmt.Sprintf("%d.%02d", n, i)
					a, err := q.Admit(ctx, write("r", id))
					if err != nil {
						t.Error(err)
						return
					}
					if a.Turn != nil {
						ran, direct = append(ran, id), direct+1
						settle(a.Turn, deferral.Settlement{})
					}
				}
			})
		}
		stop, done := context.WithCancel(ctx)
		for range 2 {
			q := b.another(b.s.Client(t))
			draining.Go(func() {
				for empty := false; stop.Err() == nil || !empty; {
					turn, err := q.Enter(ctx, "r", 3, 0)
					if err != nil {
						t.Error(err)
						return
					}
					empty = turn == nil
					next := 3
					for more := turn != nil; more; next-- { // until the lock is free and others wait
						for _, d := range turn.Deliveries() {
							ran = append(ran, d.ID)
						}
						more = settle(turn, deferral.Settlement{Verdicts: verdict(turn, deferral.Done, 0), Next: next, GoOn: deferral.Always})
					}
				}
			})
		}
		submitting.Wait()
		done()
		draining.Wait()
		ran = append(ran, strings.Fields(b.drain("r"))...)
		last := map[string]string{}
		for _, id := range ran {
			n, _, _ := strings.Cut(id, ".")
			if last[n] >= id {
				t.Errorf("%s came after %s", id, last[n])
			}
			last[n] = id
		}
		if len(ran) != submitters*each {
			t.Errorf("%d writes took effect, %d of them directly", len(ran), direct)
		}
	})
}
