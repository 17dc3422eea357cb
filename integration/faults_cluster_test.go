package integration_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

// levels are the durability levels: on how many of two replicas a write must be
// before it counts as accepted. What is on none but the primary, may be lost
// with it, and a primary of old that wakes up may still accept and run writes
// out of their order. One replica is enough against a primary that dies or is
// cut off: the Sentinels promote the replica that has most. It is not enough
// against a planned failover, in which the other replica goes on acknowledging
// for a moment what the new primary never gets: 3 of 850 were lost here.
func levels(replicated int) map[string]int {
	return map[string]int{"stored": 0, "replicated": replicated}
}

// sentinels is a rig on a primary with two replicas and three Sentinels, at a
// durability level, with two processes at work.
func sentinels(t *testing.T, replicas int) (*fleet.Fleet, *servers.SentinelSet) {
	t.Helper()
	t.Parallel()
	s := servers.NewSentinelSet(t)
	f := fleet.New(t, fleet.Target{Addrs: s.Addrs(), Master: servers.Master, Password: servers.ClientPassword}, servers.AnyDatabase(t).URL())
	f.MayLose, f.MayOvertake = replicas == 0, replicas == 0
	for i := range 2 {
		load := steady()
		load.Push, load.Seed = 50, uint64(i)
		f.Start(fleet.Spec{Run: true, Submit: load, Replicas: replicas}).Accepted(20)
	}
	return f, s
}

func more(f *fleet.Fleet, n int) {
	at := f.Accepted() + n
	f.Until("more writes to be accepted", func() bool { return f.Accepted() >= at })
}

// The primary dies, or freezes and wakes when another has taken its place.
func TestRow16SentinelFailover(t *testing.T) {
	for level, replicas := range levels(1) {
		t.Run(level, func(t *testing.T) {
			f, s := sentinels(t, replicas)
			old := s.Primary(t)
			old.Kill()
			began := time.Now()
			now := s.AwaitOther(t, old)
			more(f, 20)
			t.Logf("writes are accepted again after %v", time.Since(began).Round(time.Millisecond))
			s.Heal(t)
			now.Stop(t)
			s.AwaitOther(t, now)
			now.Continue(t) // it takes itself for the primary until it is told
			more(f, 50)
			s.Heal(t)
			t.Log(f.Finish())
		})
	}
}

// The primary is replaced while all are well. Clients see no error, and what was
// only stored in the last moments is gone.
func TestRow17PlannedFailover(t *testing.T) {
	for level, replicas := range levels(2) {
		t.Run(level, func(t *testing.T) {
			f, s := sentinels(t, replicas)
			s.Failover(t)
			more(f, 50)
			s.Heal(t)
			t.Log(f.Finish())
		})
	}
}

// The primary is cut off from its replicas and the Sentinels, and some clients
// stay with it: two processes hold the same lock. Only the fence keeps their
// writes apart. What the clients of the old primary were told is kept is what
// the level says.
//
// They are parted twice: by taking away the users by which servers know each
// other, which anybody may do; and, in a process with a network of its own, by
// dropping their packets, which takes root.
func TestRow18Partition(t *testing.T) {
	if servers.OwnNetwork() {
		t.Log("parted by dropping packets")
		for level, replicas := range levels(1) {
			t.Run(level, func(t *testing.T) { partition(t, replicas) })
		}
		return
	}
	t.Log("parted by taking away users")
	for level, replicas := range levels(1) {
		t.Run(level, func(t *testing.T) { partition(t, replicas) })
	}
	said, err := servers.InOwnNetwork(t)
	switch {
	case errors.Is(err, servers.ErrNoNetwork):
		t.Logf("NOT parted by dropping packets: %v", err)
	case err != nil || !strings.Contains(said, "parted by dropping packets"):
		t.Errorf("%v\n%s", err, said)
	default:
		t.Log(said)
	}
}

func partition(t *testing.T, replicas int) {
	f, s := sentinels(t, replicas)
	f.MayOvertake = true
	old := s.Primary(t)
	onOld := fleet.Target{Addrs: []string{old.Addr()}, Password: servers.ClientPassword}
	load := steady()
	load.Push, load.Once = 50, true
	left := f.Start(fleet.Spec{Run: true, Submit: load, Replicas: replicas, Redis: onOld})
	left.Accepted(20)
	// It has a lock, and is about to write. The old primary will go on calling the
	// lock its own, whoever has written since.
	calm := steady()
	calm.Once = true
	late := f.Start(fleet.Spec{Run: true, Submit: calm, Replicas: replicas, Redis: onOld, Deaf: true, Gate: fleet.Gate{At: "before begin"}})
	late.AtGate()
	s.CutOff(t, old)
	s.AwaitOther(t, old)
	effects := f.Effects()
	more(f, 100)
	f.Until("others to write to its resource", func() bool { return f.Effects() > effects+100 })
	n := left.Taken()
	f.Until("the minority to go on as well", func() bool { return left.Taken() > n+10 })
	late.Open()
	f.Until("the late holder to be stopped by the fence", func() bool { return late.Refusals() > 0 })
	late.Kill()
	left.Kill()
	s.Heal(t)
	more(f, 20)
	t.Log(f.Finish())
}

// The owner of a slot dies; a replica takes over from a healthy one; a slot
// moves to another server while its lanes are worked on.
func TestRow19Cluster(t *testing.T) {
	t.Parallel()
	c := servers.NewCluster(t)
	target := fleet.Target{Addrs: c.Addrs(), Cluster: true}
	for name, fault := range map[string]func(t *testing.T, f *fleet.Fleet){
		"OwnerKilled": func(t *testing.T, f *fleet.Fleet) {
			f.MayLose = true
			owner := c.Owner(t, "{"+f.Name()+":0}:due")
			owner.Kill()
			servers.Wait(t, 30*time.Second, "the replica to take over", func() bool {
				return c.Owner(t, "{"+f.Name()+":0}:due") != owner
			})
			more(f, 50)
			c.Heal(t)
		},
		"Failover": func(t *testing.T, f *fleet.Fleet) {
			owner := c.Owner(t, "{"+f.Name()+":0}:due")
			c.ReplicaOf(t, owner).Do(t, "cluster", "failover")
			servers.Wait(t, 30*time.Second, "the replica to take over", func() bool {
				return c.Owner(t, "{"+f.Name()+":0}:due") != owner
			})
			c.Heal(t)
		},
		"SlotMigrated": func(t *testing.T, f *fleet.Fleet) {
			for i := range 15 {
				c.Migrate(t, fmt.Sprintf("{%s:%d}:due", f.Name(), i%5))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fleet.New(t, target, servers.AnyDatabase(t).URL())
			for i := range 2 {
				load := steady()
				load.Seed, load.Push, load.Resources = uint64(i), 50, 12
				f.Start(fleet.Spec{Run: true, Submit: load, Shards: 5}).Accepted(20)
			}
			fault(t, f)
			more(f, 50)
			t.Log(f.Finish())
		})
	}
}
