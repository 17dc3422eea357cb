//go:build linux

package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
)

// The clocks of the workers are five minutes ahead and five behind. What they
// push, for now or for later, what they defer and what they run has its order and
// its time from Redis alone: with the plain recipe the same breaks the order, see
// TestPlantedOrderByAWorkersClock.
func TestRow23WorkersClocksAreWrong(t *testing.T) {
	r := newRig(t)
	for i, off := range []time.Duration{5 * time.Minute, -5 * time.Minute, 0} {
		load := steady()
		load.Seed, load.Push, load.Later = uint64(i), 50, 20
		p := r.Start(fleet.Spec{Run: true, Clock: off, LockTTL: 5 * time.Second, Submit: load, Batches: i == 1, DeferFailures: true})
		p.Accepted(20)
	}
	r.more(300)
	rep := r.Finish()
	if rep.LocksLost > 0 || rep.Redelivered > 0 {
		t.Errorf("a clock that is wrong costs locks or deliveries: %s", rep)
	}
}

// Order is that of the processes' clocks, and one of them is a minute slow.
func TestPlantedOrderByAWorkersClock(t *testing.T) {
	r := newRig(t)
	r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(100)}).Accepted(1)
	r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(100), Clock: -time.Minute}).Accepted(1)
	r.Start(fleet.Spec{Plant: fleet.PlantNaive, Run: true, Concurrency: 1})
	r.Until("both to take effect", func() bool { return r.Effects() == 2 })
	red(t, r.End(), "overtaken")
}
