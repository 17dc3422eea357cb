package deferral_test

import (
	"errors"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
)

func (q operated) due(lookback time.Duration) []string {
	q.t.Helper()
	due, err := q.Due(q.t.Context(), 0, 100, lookback, 0)
	if err != nil {
		q.t.Fatal(err)
	}
	return due.Lanes
}

func TestNothingOfAPausedLaneStarts(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.push("acc", "before")
		for _, reason := range []string{"first", "second"} {
			if err := q.Pause(t.Context(), "acc", reason); err != nil {
				t.Fatal(err)
			}
		}
		q.push("acc", "after")
		if a, err := q.Admit(t.Context(), deferral.Write{Resource: "acc", ID: "admitted"}); err != nil || a.Turn != nil || a.Why != deferral.Paused {
			t.Errorf("admitted: %+v, %v", a, err)
		}
		if lanes := q.due(0); len(lanes) != 0 {
			t.Errorf("due: %q", lanes)
		}
		if turn, err := q.Enter(t.Context(), "acc", 1, 0); err != nil || turn != nil {
			t.Errorf("entered: %v, %v", turn, err)
		}
		if l := q.lanes(); len(l) != 1 || !l[0].Paused || l[0].Reason != "second" || l[0].Depth != 3 {
			t.Errorf("%+v", l)
		}
		for range 2 {
			if err := q.Resume(t.Context(), "acc"); err != nil {
				t.Fatal(err)
			}
		}
		if lanes := q.due(0); len(lanes) != 1 {
			t.Errorf("due after the pause: %q", lanes)
		}
		if n := len(q.enter("acc", 3).Deliveries()); n != 3 {
			t.Errorf("%d writes were started", n)
		}
	})
}

func TestAPauseOutlivesAnEmptyLane(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		if err := q.Pause(t.Context(), "acc", ""); err != nil {
			t.Fatal(err)
		}
		q.push("acc", "w")
		if err := q.CancelIn(t.Context(), "acc", "w"); err != nil {
			t.Fatal(err)
		}
		q.push("acc", "w")
		if lanes := q.due(0); len(lanes) != 0 {
			t.Errorf("due: %q", lanes)
		}
		if err := q.Resume(t.Context(), "acc"); err != nil {
			t.Fatal(err)
		}
		if lanes := q.due(0); len(lanes) != 1 {
			t.Errorf("due after the pause: %q", lanes)
		}
	})
}

func TestAHaltedLaneGoesOnWithOrWithoutItsHead(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		for _, lane := range []string{"acc", "\x00lone"} {
			id := "lone"
			if lane == "acc" {
				id = "w"
				q.push("acc", "w")
				q.push("acc", "next")
			} else {
				q.push("", "lone")
			}
			q.settle(q.enter(lane, 1), deferral.Verdict{Fate: deferral.Halted, Cause: "no such account"})
			l := q.lanes()
			if len(l) != 1 || l[0].Name != lane || !l[0].Paused || l[0].Reason != "no such account" || l[0].Cause != "no such account" {
				t.Errorf("%+v", l)
			}
			if err := q.Resume(t.Context(), l[0].Name); err != nil {
				t.Fatal(err)
			}
			turn := q.enter(lane, 1)
			if d := turn.Deliveries()[0]; d.ID != id || d.Attempt != 1 { // counted anew
				t.Errorf("%+v", d)
			}
			q.settle(turn, deferral.Verdict{Fate: deferral.Halted})
			if err := q.Cancel(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if err := q.Resume(t.Context(), lane); err != nil {
				t.Fatal(err)
			}
			if lane == "acc" {
				q.settle(q.enter(lane, 1), deferral.Verdict{Fate: deferral.Done})
			}
		}
	})
}

func TestAFreedLockGoesToTheNextWithAHigherFence(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.push("acc", "1")
		q.push("acc", "2")
		old := q.enter("acc", 1)
		defer old.Lease().End()
		if freed, err := q.Free(t.Context(), "acc"); err != nil || !freed {
			t.Errorf("%v, %v", freed, err)
		}
		if freed, err := q.Free(t.Context(), "acc"); err != nil || freed {
			t.Errorf("a second time: %v, %v", freed, err)
		}
		if lanes := q.due(0); len(lanes) != 1 {
			t.Errorf("due: %q", lanes)
		}
		next := q.enter("acc", 1)
		if next.Lease().Fence() <= old.Lease().Fence() {
			t.Errorf("fence %d after %d", next.Lease().Fence(), old.Lease().Fence())
		}
		if err := old.Lease().Extend(t.Context()); !errors.Is(err, deferral.ErrLost) {
			t.Errorf("the old holder extends: %v", err)
		}
		q.settle(next, deferral.Verdict{Fate: deferral.Done})
	})
}

// The operator's scripts do not know the lookback. They used to put a resting
// lane's moment down as the end of the rest, so that the lookback came on top.
func TestFreeAndResumeDoNotAddALookbackToARest(t *testing.T) {
	const lookback = time.Hour
	for name, disturb := range map[string]func(q operated) error{
		"Free": func(q operated) error { _, err := q.Free(q.t.Context(), "acc"); return err },
		"Resume": func(q operated) error {
			return errors.Join(q.Pause(q.t.Context(), "acc", ""), q.Resume(q.t.Context(), "acc"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
				q.push("acc", "w")
				turn := q.enter("acc", 1)
				v := deferral.Verdict{Delivery: turn.Deliveries()[0], Fate: deferral.Failed, Rest: time.Hour / 2}
				if _, err := turn.Settle(t.Context(), deferral.Settlement{Verdicts: []deferral.Verdict{v}, GoOn: deferral.Always, Lookback: lookback}); err != nil {
					t.Fatal(err)
				}
				if err := disturb(q); err != nil {
					t.Fatal(err)
				}
				due, err := q.Due(t.Context(), 0, 1, lookback, 0)
				if err != nil || due.Next < 0 || due.Next > lookback {
					t.Errorf("the next look is in %v, %v", due.Next, err)
				}
				if len(due.Lanes) > 0 { // a look that comes too early puts the moment right
					if turn, err := q.Enter(t.Context(), "acc", 1, lookback); err != nil || turn != nil {
						t.Errorf("entered: %v, %v", turn, err)
					}
					due, err = q.Due(t.Context(), 0, 1, lookback, 0)
				}
				if err != nil || due.Next > lookback/2 {
					t.Errorf("the next look is in %v, %v", due.Next, err)
				}
			})
		})
	}
}

func TestOnlyLanesAreControlled(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		for _, lane := range []string{"", "\x00", "a\x00b", "\xff", "\x00\xff"} {
			_, freed := q.Free(t.Context(), lane)
			for name, err := range map[string]error{"Pause": q.Pause(t.Context(), lane, ""), "Resume": q.Resume(t.Context(), lane), "Free": freed} {
				if !errors.Is(err, deferral.ErrInvalid) {
					t.Errorf("%s(%q): %v", name, lane, err)
				}
			}
		}
	})
}
