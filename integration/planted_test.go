package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
)

// Each of these breaks a promise on purpose. A check that stays green here is
// worth nothing; see also TestRow04WithoutTheFenceItIsSeen, and
// TestPlantedOrderByAWorkersClock beside row 23. What must happen is
// brought about by gates, not left to luck. Where the same steps without the
// fault are not a row of the matrix, they are done here too, and must be green.

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

// one is a load of one write, which is pushed or done.
func one(push int) *fleet.Load { return &fleet.Load{Resources: 1, Writes: 1, Push: push, Once: true} }

// A commit whose reply was lost is done again without asking for its ID.
func TestPlantedCommitRepeatedWithoutTheID(t *testing.T) {
	r := newRig(t)
	pair(r, func(s *fleet.Spec) {
		s.Plant, s.Lose = fleet.PlantNoID, []fleet.Loss{{Step: "commit", Every: 5}}
	})
	r.more(100)
	red(t, r.End(), "duplicate")
}

// A write is acknowledged before it is committed, and its process dies.
func TestPlantedAckBeforeCommit(t *testing.T) {
	r := newRig(t)
	victim := r.Start(fleet.Spec{Plant: fleet.PlantAckFirst, Submit: one(0), Gate: fleet.Gate{At: "before begin"}})
	victim.AtGate()
	victim.Accepted(1)
	victim.Kill()
	red(t, r.End(), "lost")
}

// The plain recipe: what is popped is deleted before it has run, and its process
// dies.
func TestPlantedDeleteAtPop(t *testing.T) {
	r := newRig(t)
	r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(100)}).Accepted(1)
	victim := r.Start(fleet.Spec{Plant: fleet.PlantNaive, Run: true, Gate: fleet.Gate{At: "before begin"}})
	victim.AtGate()
	victim.Kill()
	red(t, r.End(), "lost")
}

// The plain recipe: a newer write finds the lock free and overtakes one that was
// put aside.
func TestPlantedNaiveRecipeOvertakes(t *testing.T) {
	r := newRig(t)
	r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(100)}).Accepted(1)
	r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(0)}).Accepted(1)
	red(t, r.End(), "overtaken")
}

// SET and ZADD are two steps. The process dies between them; or the second is
// refused, and the call that is repeated sees by the String that all is well.
func TestPlantedSetThenAddInTwoSteps(t *testing.T) {
	t.Run("ProcessDies", func(t *testing.T) {
		r := newRig(t)
		victim := r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(100), Gate: fleet.Gate{At: "before zadd"}})
		victim.AtGate()
		victim.Kill()
		red(t, r.End(), "keys")
	})
	for name, plant := range map[string]string{"Refused": fleet.PlantNaive, "RefusedToTheLibrary": ""} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.redis.Do(t, "acl", "setuser", "worker", "on", ">secret", "+@all", "-zadd", "~*", "&*")
			target := fleet.Single(r.redis.Addr())
			target.Username, target.Password = "worker", "secret"
			load := one(100)
			load.Once = false
			p := r.Start(fleet.Spec{Plant: plant, Submit: load, Redis: target})
			if plant != "" {
				p.Accepted(1)
				red(t, r.End(), "keys")
				return
			}
			<-time.After(ttl) // it is refused again and again
			r.redis.Do(t, "acl", "setuser", "worker", "+zadd")
			p.Accepted(1)
			r.Finish()
		})
	}
}

// A lock is released by its name, without its token, when it is somebody else's
// already: a third one gets it as well.
func TestPlantedReleaseWithoutToken(t *testing.T) {
	if rep := lateRelease(t, fleet.PlantRelease); !rep.Has("stale") && !rep.Has("overlap") {
		t.Errorf("two held the lock at once, and nothing was found: %s: %q", rep, rep.Violations)
	}
}

// The same steps with the token.
func TestLateReleaseWithTokenHarmsNobody(t *testing.T) {
	if rep := lateRelease(t, fleet.PlantNaive); len(rep.Violations) > 0 {
		t.Errorf("%q", rep.Violations)
	}
}

// lateRelease has a holder stop between its commit and its release for longer
// than its lock lives. The next holder has got the lock and is about to write
// when the late release comes; then a third wants to write.
func lateRelease(t *testing.T, plant string) *fleet.Report {
	t.Helper()
	r := newRig(t)
	late := r.Start(fleet.Spec{Plant: plant, Submit: one(0), Gate: fleet.Gate{At: "before release"}})
	late.AtGate()
	r.Until("its lock to end", func() bool { return r.Redis().DBSize(t.Context()).Val() == 0 })
	holder := r.Start(fleet.Spec{Plant: plant, Submit: one(0), LockTTL: time.Minute, Gate: fleet.Gate{At: "before begin"}})
	holder.AtGate()
	late.Open()
	late.Accepted(1)
	r.Start(fleet.Spec{Plant: plant, Submit: one(0)}).Accepted(1) // it runs, or it is pushed
	holder.Open()
	holder.Accepted(1)
	return r.End()
}

// `<` for `<=` in the fence: a holder cannot write twice under one fence, and
// writes are refused although nobody else has written. See Row04 for the same
// with `<=`, where only those are refused that are late.
func TestPlantedFenceThatMustRise(t *testing.T) {
	for name, plant := range map[string]string{"Greater": fleet.PlantStrict, "GreaterOrEqual": ""} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := r.Start(fleet.Spec{Plant: plant, Submit: &fleet.Load{Resources: 1, Writes: 10, Push: 100}})
			p.Accepted(10)
			r.Start(fleet.Spec{Run: true, Plant: plant})
			if plant != "" {
				red(t, r.End(), "refused")
				return
			}
			r.Finish()
		})
	}
}

// The lock lives shorter than what it is held for, and nobody renews it: another
// has written when its holder comes to write.
func TestPlantedRunLongerThanTheLock(t *testing.T) {
	r := newRig(t)
	slow := r.Start(fleet.Spec{Plant: fleet.PlantNaive, Submit: one(0), Gate: fleet.Gate{At: "before begin"}})
	slow.AtGate()
	next := r.Start(fleet.Spec{Plant: fleet.PlantNaive, Run: true, Submit: one(0)})
	next.Accepted(1)
	r.Until("another to write", func() bool { return r.Effects() == 1 })
	slow.Open()
	slow.Accepted(1)
	red(t, r.End(), "stale")
}

// A run that ends before the lock of one that died does is not done, although
// there is nothing that anybody could do any more. See Row01 for runs that wait.
func TestPlantedRunShorterThanTheLocksLife(t *testing.T) {
	r := newRig(t)
	r.Within = 2 * time.Second // it is to end before the lock does
	r.Start(fleet.Spec{Submit: one(100)}).Accepted(1)
	victim := r.Start(fleet.Spec{Run: true, LockTTL: time.Minute, Gate: fleet.Gate{At: "before begin"}})
	victim.AtGate()
	victim.Kill()
	rep := r.End()
	red(t, rep, "stuck")
	red(t, rep, "lock")
}

// A process is told that its lock is lost, and writes all the same; there is no
// fence to stop it.
func TestPlantedErrLostSwallowed(t *testing.T) {
	if rep := loseLock(t, true); !rep.Has("stale") {
		t.Errorf("it wrote when it had lost its lock, and nothing was found: %s: %q", rep, rep.Violations)
	}
}

// The same steps by a process that heeds it. It does the write again later.
func TestErrLostHeededHarmsNobody(t *testing.T) {
	if rep := loseLock(t, false); len(rep.Violations) > 0 {
		t.Errorf("%q", rep.Violations)
	}
}

func loseLock(t *testing.T, deaf bool) *fleet.Report {
	t.Helper()
	r := newRig(t)
	load := one(0)
	load.Once = false
	loser := r.Start(fleet.Spec{Plant: fleet.PlantNoFence, Deaf: deaf, Submit: load, Gate: fleet.Gate{At: "before begin"}})
	loser.AtGate()
	if freed, err := r.Queue().Free(t.Context(), "r0"); err != nil || !freed {
		t.Fatalf("it held no lock: %v", err)
	}
	r.Start(fleet.Spec{Plant: fleet.PlantNoFence, Submit: one(0)}).Accepted(1)
	r.Until("it to be told", func() bool { return loser.ToldLost() > 0 })
	loser.Open()
	loser.Accepted(1)
	return r.End()
}
