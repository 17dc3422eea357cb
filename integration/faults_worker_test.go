package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
)

func TestNoFaultNoViolation(t *testing.T) {
	r := newRig(t)
	r.Start(fleet.Spec{Run: true, Submit: steady()})
	r.Start(fleet.Spec{Run: true, Submit: steady(), Batches: true})
	p := r.Start(fleet.Spec{Submit: steady()})
	p.Accepted(200)
	t.Log(r.Finish())
}

// A worker dies while it runs a write of a lane, before its transaction has
// committed. The write is there for the next holder, and takes effect once.
func TestRow01WorkerKilledBeforeCommit(t *testing.T) {
	r := newRig(t)
	victim := r.Start(fleet.Spec{Run: true, Gate: fleet.Gate{At: "after write"}})
	submitter := r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 2, Goroutines: 2, Writes: 30, Push: 100}})
	victim.AtGate()
	submitter.Accepted(60)
	victim.Kill()
	r.Start(fleet.Spec{Run: true})
	if rep := r.Finish(); rep.Redelivered == 0 {
		t.Errorf("nothing was delivered again: the victim was not at a write. %s", rep)
	}
}

// A worker dies when its transaction has committed and nobody has heard of it.
// The write is delivered again and has no second effect.
func TestRow02WorkerKilledBetweenCommitAndAck(t *testing.T) {
	r := newRig(t)
	victim := r.Start(fleet.Spec{Run: true, Gate: fleet.Gate{At: "after commit"}})
	submitter := r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 2, Goroutines: 2, Writes: 30, Push: 100}})
	victim.AtGate()
	submitter.Accepted(60)
	victim.Kill()
	r.Start(fleet.Spec{Run: true})
	if rep := r.Finish(); rep.Redelivered == 0 {
		t.Errorf("nothing was delivered again: the victim had acknowledged. %s", rep)
	}
}

// A process dies before and after every step of a write, while others go on.
func TestRow03ProcessKilledAtEveryStep(t *testing.T) {
	for _, step := range []string{"admit", "push", "take", "claim", "begin", "write", "commit", "ack", "release", "refresh"} {
		for _, side := range []string{"before ", "after "} {
			at := side + step
			t.Run(strings.ReplaceAll(at, " ", ""), func(t *testing.T) {
				r := newRig(t)
				// The lock must be renewed while a write runs, or there is no refresh.
				think := time.Duration(0)
				if step == "refresh" {
					think = ttl
				}
				r.Start(fleet.Spec{Run: true, Submit: steady()})
				victim := r.Start(fleet.Spec{Run: true, Submit: steady(), Think: think, Gate: fleet.Gate{At: at, Nth: 2}})
				victim.AtGate()
				victim.Kill()
				r.Start(fleet.Spec{Submit: steady()}).Accepted(20)
				r.Finish()
			})
		}
	}
}

// A holder is frozen longer than its lock lives, and wakes when others have
// written. With the fence nothing of it gets through.
func TestRow04HolderStoppedLongerThanItsLockLives(t *testing.T) {
	if rep := stopHolders(t, ""); rep.Stale == 0 {
		t.Errorf("the fence has refused nobody: the row proves nothing. %s", rep)
	}
}

// The same run with the fence off must fail, or the checks are blind.
func TestRow04WithoutTheFenceItIsSeen(t *testing.T) {
	rep := stopHolders(t, fleet.PlantNoFence)
	if !rep.Has("stale") && !rep.Has("overlap") && !rep.Has("duplicate") {
		t.Errorf("nothing was found although the fence was off. %s", rep)
	}
}

// stopHolders freezes three processes in the middle of writes: before the
// transaction, where only the fence can stop them.
func stopHolders(t *testing.T, plant string) *fleet.Report {
	t.Helper()
	r := newRig(t)
	var held []*fleet.Process
	for i := range 3 {
		load := &fleet.Load{Resources: 2, Goroutines: 2, Pause: 5 * time.Millisecond, Push: 30, Seed: uint64(i)}
		p := r.Start(fleet.Spec{Run: true, Submit: load, Plant: plant, Deaf: true, Gate: fleet.Gate{At: "before begin", Nth: 5}})
		p.AtGate()
		p.Stop()
		p.Open() // it goes on when it wakes
		held = append(held, p)
	}
	healthy := r.Start(fleet.Spec{Run: true, Submit: steady(), Plant: plant})
	// Others write to its resources: its locks have ended.
	effects := r.Effects()
	healthy.Accepted(100)
	r.Until("others to write", func() bool { return r.Effects() > effects+100 })
	for _, p := range held {
		p.Continue()
	}
	if plant == "" {
		return r.Finish()
	}
	return r.End()
}
