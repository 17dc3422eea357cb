package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
	"github.com/deferlock/deferlock/worker"
)

// Functions panic, end their goroutine, wait for the end of their context, or
// block for ten lives of a lock without looking at it. Their lanes and their
// runners are free again, and their writes are done.
func TestRow28FunctionMisbehaves(t *testing.T) {
	for _, how := range []string{"fail", "panic", "goexit", "stall", "block"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			load := &fleet.Load{Resources: 4, Goroutines: 2, Writes: 30, Push: 100, Misbehave: how, Every: 10}
			p := r.Start(fleet.Spec{Run: true, MaxHold: 2 * ttl, Concurrency: 4, Submit: load})
			r.Start(fleet.Spec{Run: true, MaxHold: 2 * ttl})
			p.Accepted(60)
			if rep := r.Finish(); rep.Failed < 5 && rep.Redelivered == 0 {
				t.Errorf("nothing misbehaved: %s", rep)
			}
		})
	}
}

// A write at the head of its lane never succeeds. What becomes of the lane is
// declared; later writes never pass it unseen.
func TestRow29PoisonAtTheHead(t *testing.T) {
	for policy, name := range []string{"LaneWaits", "WriteStepsAside", "LaneHalts"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.AllowDead = true
			spec := fleet.Spec{Run: true, MaxAttempts: 3, OnFailure: policy,
				Submit: &fleet.Load{Resources: 3, Goroutines: 2, Writes: 30, Push: 100, Misbehave: "poison", Every: 20}}
			p := r.Start(spec)
			p.Accepted(60)
			if worker.OnFailure(policy) == worker.LaneHalts {
				r.resume(t)
			}
			rep := r.Finish()
			if want := 3; worker.OnFailure(policy) != worker.LaneHalts && rep.Dead != want || rep.Effects+rep.Dead != 60 {
				t.Errorf("%d poisoned writes, %s", want, rep)
			}
		})
	}
}

// resume is an operator who takes out what has halted a lane, and lets the lane
// go on, until no lane is paused.
func (r *rig) resume(t *testing.T) {
	t.Helper()
	q := r.Queue()
	r.Until("no lane to be paused, and nothing to wait", func() bool {
		for l, err := range q.Lanes(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if !l.Paused {
				continue
			}
			head := r.Redis().ZRange(t.Context(), fmt.Sprintf("{%s:0}:lane:%s", r.Name(), l.Resource), 0, 0).Val()
			if len(head) == 1 {
				if err := q.CancelIn(t.Context(), l.Resource, head[0]); err != nil {
					t.Fatal(err)
				}
				r.TakenOut(l.Resource, head[0])
			}
			if err := q.Resume(t.Context(), l.Resource); err != nil {
				t.Fatal(err)
			}
		}
		s, err := q.Stats(t.Context())
		return err == nil && s.Paused == 0 && s.Waiting == 0
	})
}

// 64 contend for one resource, and a hundred thousand wait for it. They are done
// in batches of a thousand: a script that claimed them all would hold everybody
// up.
func TestRow30OneResourceForAll(t *testing.T) {
	const deep, contenders, largest = 100_000, 64, 1000
	r := newRig(t)
	r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 1, Goroutines: 200, Writes: deep / 200, Push: 100}, PoolSize: 32})
	servers.Wait(t, 5*time.Minute, "all to wait", func() bool { return r.Accepted() >= deep })
	t.Log("all wait")
	for i := range 2 {
		r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 1, Goroutines: contenders / 2, Writes: 20, Seed: uint64(i)}})
	}
	for range 2 {
		r.Start(fleet.Spec{Run: true, Batches: true, Batch: largest, LockTTL: 5 * time.Second})
	}
	r.Until("all to be accepted", func() bool { return r.Accepted() == deep+contenders*20 })
	rep := r.Finish()
	if want := deep + contenders*20; rep.Accepted != want || rep.Effects != want {
		t.Errorf("want %d in effect: %s", want, rep)
	}
	db, err := pgx.Connect(t.Context(), r.database.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	var most int
	const sql = "SELECT max(n) FROM (SELECT count(*) AS n FROM effects GROUP BY process, entered) AS batch"
	if err := db.QueryRow(t.Context(), sql).Scan(&most); err != nil || most > largest || most < largest/2 {
		t.Errorf("the largest batch had %d writes, %v: want %d to %d", most, err, largest/2, largest)
	}
}

// Old and new releases run side by side: a kind that a process does not know,
// and a write in a form that it cannot read, are left alone for one that can.
func TestRow31OldAndNewSideBySide(t *testing.T) {
	r := newRig(t)
	r.Start(fleet.Spec{Run: true, Kind: "old"})
	newer := r.Start(fleet.Spec{Kind: "new", Submit: &fleet.Load{Resources: 2, Writes: 10, Push: 100}})
	newer.Accepted(10)
	newer.Quiet()
	key := r.Redis().Keys(t.Context(), "{"+r.Name()+":0}:write:*").Val()
	if len(key) != 10 {
		t.Fatalf("%d of 10 writes are there", len(key))
	}
	slices.Sort(key)
	form := r.Redis().GetRange(t.Context(), key[3], 0, 0).Val()
	r.Redis().SetRange(t.Context(), key[3], 0, "\x7f")
	r.Start(fleet.Spec{Run: true, Kind: "new"})
	// Those on the other resource are done; those behind the unreadable one wait.
	r.Until("what can be done to be done", func() bool { return r.Effects() > 0 })
	<-time.After(2 * ttl)
	if r.Redis().Exists(t.Context(), key[3]).Val() != 1 {
		t.Error("a write that nobody can read is gone")
	}
	r.Redis().SetRange(t.Context(), key[3], 0, form)
	if rep := r.Finish(); rep.Effects != 10 {
		t.Errorf("not all was done: %s", rep)
	}
}

// A process is asked to end, and asked again; functions outlast the grace and
// are cut off. Nothing is lost, and the rest is done by others.
func TestRow32GraceOver(t *testing.T) {
	r := newRig(t)
	slow := &fleet.Load{Resources: 4, Goroutines: 4, Writes: 10, Push: 100, Misbehave: "stall", Every: 3}
	p := r.Start(fleet.Spec{Run: true, Grace: ttl, Submit: slow})
	p.Accepted(40)
	p.Term()
	p.Term()
	r.Until("the process to end", func() bool { return !p.Alive() })
	if strings.Contains(p.Errors(), "panic") {
		t.Error(p.Errors())
	}
	r.Start(fleet.Spec{Run: true, MaxHold: 2 * ttl}) // each of those stalls once more
	r.Finish()
}
