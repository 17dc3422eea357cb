package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
)

// Each of these breaks a promise on purpose. A check that stays green here is
// worth nothing; see also TestRow04WithoutTheFenceItIsSeen.

// brief is how long a planted fault's queue may go without progress: it may well
// be stuck.
const brief = 2 * time.Second

// red fails the test unless the report has a violation of one of these kinds.
func red(t *testing.T, rep *fleet.Report, kinds ...string) {
	t.Helper()
	for _, k := range kinds {
		if rep.Has(k) {
			return
		}
	}
	t.Errorf("none of %q was found: %s: %q", kinds, rep, rep.Violations)
}

// A commit whose reply was lost is done again without asking for its ID.
func TestPlantedCommitRepeatedWithoutTheID(t *testing.T) {
	r := newRig(t)
	r.Within = brief
	pair(r, func(s *fleet.Spec) {
		s.Plant, s.Lose = fleet.PlantNoID, []fleet.Loss{{Step: "commit", Every: 5}}
	})
	r.more(100)
	red(t, r.End(), "duplicate")
}

// Writes are acknowledged before they are committed, and the process dies.
func TestPlantedAckBeforeCommit(t *testing.T) {
	r := newRig(t)
	r.Within = brief
	victim := r.Start(fleet.Spec{Run: true, Submit: steady(), Plant: fleet.PlantAckFirst, Think: 40 * time.Millisecond})
	victim.Accepted(100)
	victim.Kill()
	red(t, r.End(), "lost")
}

// The plain recipe: what is popped is deleted before it has run, and its process
// dies.
func TestPlantedNaiveRecipeLoses(t *testing.T) {
	r := newRig(t)
	r.Within = brief
	victim := r.Start(fleet.Spec{Run: true, Submit: steady(), Plant: fleet.PlantNaive, Think: 40 * time.Millisecond})
	r.Start(fleet.Spec{Submit: steady(), Plant: fleet.PlantNaive}).Accepted(100)
	victim.Kill()
	red(t, r.End(), "lost")
}

// The plain recipe: newer writes overtake those that were put aside.
func TestPlantedNaiveRecipeOvertakes(t *testing.T) {
	r := newRig(t)
	r.Within = brief
	pair(r, func(s *fleet.Spec) { s.Plant, s.Think = fleet.PlantNaive, 5*time.Millisecond })
	r.more(100)
	red(t, r.End(), "overtaken")
}

// Order is that of the processes' clocks, and one of them is a minute slow.
func TestPlantedOrderByAWorkersClock(t *testing.T) {
	r := newRig(t)
	r.Within = brief
	for _, skew := range []time.Duration{0, -time.Minute} {
		load := &fleet.Load{Resources: 1, Pause: 10 * time.Millisecond}
		r.Start(fleet.Spec{Run: skew == 0, Submit: load, Plant: fleet.PlantNaive, Skew: skew, Think: 10 * time.Millisecond}).Accepted(50)
	}
	red(t, r.End(), "overtaken", "fence", "stale")
}

// The lock lives shorter than what it is held for, nobody renews it, and the
// loss is not heeded.
func TestPlantedRunLongerThanTheLock(t *testing.T) {
	r := newRig(t)
	r.Within = 4 * ttl
	for i := range 2 {
		r.Start(fleet.Spec{Run: true, Plant: fleet.PlantNaive, Think: 2 * ttl,
			Submit: &fleet.Load{Resources: 1, Goroutines: 3, Writes: 2, Seed: uint64(i)}})
	}
	r.Until("all to be submitted", func() bool { return r.Accepted() >= 12 })
	red(t, r.End(), "overlap", "stale", "overtaken", "fence")
}
