package deferral_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

func TestHotLaneIsOneCandidate(t *testing.T) {
	b := newBench(t, redistest.Real(t), deferral.Config{})
	for i := range 1000 {
		b.push("hot", fmt.Sprint(i))
	}
	b.push("cold", "a")
	b.wantDue(0, "hot", "cold")
	if n := b.rdb.ZCard(t.Context(), b.key("due")).Val(); n != 2 {
		t.Errorf("%d entries in the index", n)
	}
	b.audit()
}

func TestLockedLanesDoNotHideAFreeOne(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.manyKeys()
		lock := func(from, to int) {
			for i := from; i < to; i++ {
				lane := fmt.Sprint("locked ", i)
				b.push(lane, "a")
				b.rdb.Set(t.Context(), b.key("lock:"+lane), "somebody else's", time.Minute)
			}
		}
		lock(0, 64)
		b.push("free at one look", "a")
		if lanes := b.due(1, 0).Lanes; !slices.Equal(lanes, []string{"free at one look"}) {
			t.Errorf("behind 64 locked lanes: %q", lanes)
		}
		b.drain("free at one look")
		lock(64, 150)
		b.push("free", "a")
		ds, err := b.q.Pop(t.Context(), 1, 0)
		if err != nil || len(ds) != 1 || ds[0].Resource != "free" {
			t.Fatalf("popped %v, %v", ds, err)
		}
		if err := ds[0].Ack(t.Context()); err != nil {
			t.Error(err)
		}
		// Locked lanes are looked at again within a second, whatever is said of
		// how long their locks live.
		if due := b.wantDue(0); due.Next < 0 || due.Next > time.Second {
			t.Errorf("next look in %v", due.Next)
		}
		for i := range 150 {
			b.del(fmt.Sprint("lock:locked ", i))
		}
	})
}

func TestLaneThatWasHandedOutIsReservedForAMoment(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		b.wantDue(0, "r")
		due := b.wantDue(0)
		if due.Next <= 0 || due.Next > time.Second {
			t.Errorf("next look in %v", due.Next)
		}
		began := b.now()
		redistest.Wait(t, "the reservation to end", func() bool { return len(b.due(1, 0).Lanes) == 1 })
		if after := b.now().Sub(began); after > 9*time.Second {
			t.Errorf("it took %v", after)
		}
		b.drain("r")
		b.wantDue(0)
	})
}

// With a lookback for each write a lane with steady arrivals would never be
// empty again. The lookback says when a lane is looked at; then it is drained.
func TestLaneThatIsDueIsDrainedWhateverCameSince(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		const lookback = 50 * time.Millisecond
		b.push("r", "a")
		began := b.now()
		redistest.Wait(t, "the lane to be due", func() bool { return len(b.due(1, lookback).Lanes) == 1 })
		if after := b.now().Sub(began); after < lookback-10*time.Millisecond {
			t.Errorf("due after %v", after)
		}
		b.push("r", "b")
		turn := b.enter("r", 1)
		hour := deferral.Settlement{GoOn: deferral.Always, Lookback: time.Hour}
		hour.Verdicts = verdict(turn, deferral.Done, 0)
		b.settleAs(turn, hour) // the lock is given back in between
		b.wantDue(time.Hour, "r")
		turn = b.enter("r", 1)
		hour.Next, hour.Verdicts = 1, verdict(turn, deferral.Done, 0)
		b.push("r", "c")
		if got := b.settleAs(turn, hour); got != "c:1" {
			t.Errorf("started %q", got)
		}
		hour.Verdicts = verdict(turn, deferral.Done, 0)
		b.settleAs(turn, hour)
		// It is empty: the lookback of the next one counts from its own push.
		b.push("r", "d")
		if due := b.wantDue(time.Hour); due.Next < 59*time.Minute {
			t.Errorf("next look in %v", due.Next)
		}
		b.drain("r")
	})
}

// A look without a mark took away the mark that others had made, because it is
// made with the same command.
func TestLookWithoutAMarkLeavesTheMarkOfOthers(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		if _, err := b.q.Due(t.Context(), 0, 1, 0, time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := b.q.Pop(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if life := b.rdb.PTTL(t.Context(), b.key("alive")).Val(); life < 50*time.Second {
			t.Errorf("the mark lives for %v", life)
		}
		turn := b.granted("r", "a")
		if a := b.deferred("r", "b", deferral.Held); !a.Attended {
			t.Error("nobody is said to run the queue")
		}
		b.settle(turn, 0)
		b.drain("r")
	})
}

func TestMarkEndsWithItsTime(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		turn := b.granted("r", "a")
		if _, err := b.q.Due(t.Context(), 0, 0, 0, 30*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		b.deferred("r", "b", deferral.Held)
		redistest.Wait(t, "the mark to end", func() bool {
			a, err := b.q.Admit(t.Context(), write("r", "b"))
			return err == nil && !a.Attended
		})
		b.settle(turn, 0)
		b.drain("r")
	})
}

func TestLockWithoutAnEndIsReported(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		b.rdb.Set(t.Context(), b.key("lock:r"), "somebody else's", 0)
		due := b.wantDue(0)
		if !slices.Equal(due.Endless, []string{"r"}) {
			t.Errorf("endless: %q", due.Endless)
		}
		b.refused("r")
		if freed, err := b.q.Free(t.Context(), "r"); err != nil || !freed {
			t.Errorf("%v, %v", freed, err)
		}
		b.drain("r")
	})
}

// What was counted of a write for later stayed when its payload had gone.
func TestWriteForLaterThatLostItsPayloadIsReportedAndGone(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		turn := b.enter("r", 1)
		b.settle(turn, 0, verdict(turn, deferral.Aside, 0)...)
		b.del("write:r\x00a")
		if due := b.wantDue(0); !slices.Equal(due.Torn, []string{"r\x00a"}) {
			t.Errorf("torn: %q", due.Torn)
		}
	})
}

func TestWriteInALaneThatLostItsPayloadIsReportedAndGone(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		b.del("write:r\x00a")
		turn := b.enter("r", 2)
		b.wantStarted(turn, "b:1")
		if !slices.Equal(turn.Torn(), []string{"a"}) {
			t.Errorf("torn: %q", turn.Torn())
		}
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
		b.push("r", "c")
		b.del("write:r\x00c")
		if ds, err := b.q.Pop(t.Context(), 5, 0); err != nil || len(ds) != 0 {
			t.Errorf("popped %v, %v", ds, err)
		}
	})
}

func TestMoreWritesForLaterThanOneLookMovesAreAllDelivered(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.manyKeys()
		for i := range 250 {
			if _, err := b.q.Push(t.Context(), deferral.Write{ID: fmt.Sprint(i), Delay: time.Microsecond}); err != nil {
				t.Fatal(err)
			}
		}
		ds, err := b.q.Pop(t.Context(), 1000, 0)
		if err != nil || len(ds) != 250 {
			t.Errorf("%d of 250, %v", len(ds), err)
		}
		for _, d := range ds {
			if err := d.Ack(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestShardsAreAllLookedAt(t *testing.T) {
	onBoth(t, deferral.Config{Shards: 7}, func(t *testing.T, b *bench) {
		if got := len(b.q.Nudges()); got != 7 || b.q.Shards() != 7 {
			t.Errorf("%d channels, %d shards", got, b.q.Shards())
		}
		used := map[int]bool{}
		for i := range 40 {
			resource := fmt.Sprint("r", i)
			used[b.q.ShardOf(resource)] = true
			b.push(resource, "a", "b")
		}
		if len(used) != 7 {
			t.Errorf("shards used: %v", used)
		}
		for _, num := range []int{3, 37, 40} { // the rest of each lane is due at once
			ds, err := b.q.Pop(t.Context(), num, 0)
			if err != nil || len(ds) != num {
				t.Fatalf("popped %d of %d, %v", len(ds), num, err)
			}
			for _, d := range ds {
				if err := d.Ack(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := b.q.Due(t.Context(), 7, 1, 0, 0); !errors.Is(err, deferral.ErrInvalid) {
			t.Errorf("shard 7 of 7: %v", err)
		}
	})
}
