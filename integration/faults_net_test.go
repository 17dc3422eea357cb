package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

// The renewals of one process are carried out and never answered. Its functions
// are told that the lock is lost, and its writes are done by others.
func TestRow05KeeperHearsNothing(t *testing.T) {
	r := newRig(t)
	deaf := r.Start(fleet.Spec{Run: true, Submit: &fleet.Load{Resources: 2, Goroutines: 2, Push: 50, Pause: 20 * time.Millisecond},
		Think: 3 * ttl, Lose: []fleet.Loss{{Step: "refresh", Every: 1}}})
	r.Until("the keeper to go unanswered", func() bool { return deaf.Lost("refresh") > 3 })
	r.Start(fleet.Spec{Run: true}) // what the deaf one holds too long, this one does
	if rep := r.Finish(); rep.LocksLost == 0 {
		t.Errorf("nobody was told that a lock was lost: %s", rep)
	}
}

// The reply to each operation is lost, every third time. What was carried out is
// carried out once.
func TestRow06ReplyLost(t *testing.T) {
	for _, step := range []string{"admit", "push", "take", "claim", "leave", "refresh"} {
		t.Run(step, func(t *testing.T) {
			r := newRig(t)
			spec := fleet.Spec{Run: true, Submit: steady(), Lose: []fleet.Loss{{Step: step, Every: 3}}}
			if step == "refresh" {
				spec.Think, spec.Submit = 2*ttl, &fleet.Load{Resources: 4, Goroutines: 4, Writes: 3}
			}
			p := r.Start(spec)
			r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 4, Writes: 5}})
			r.Until("replies to be lost", func() bool { return p.Lost(step) >= 3 })
			r.Finish()
		})
	}
}

// weathered is a rig whose processes reach Redis through a bad network.
func weathered(t *testing.T, change func(*fleet.Spec)) (*rig, *servers.Weather, []*fleet.Process) {
	t.Helper()
	r := newRig(t)
	w := servers.NewWeather(t, r.redis.Addr())
	var ps []*fleet.Process
	for i := range 2 {
		s := fleet.Spec{Run: true, Submit: steady(), Redis: fleet.Single(w.Addr())}
		s.Submit.Seed = uint64(i)
		if change != nil {
			change(&s)
		}
		p := r.Start(s)
		p.Accepted(20)
		ps = append(ps, p)
	}
	return r, w, ps
}

// Nothing comes through any more, in one direction or the other, and nothing
// says so: calls end with their context.
func TestRow08BlackHole(t *testing.T) {
	for _, stream := range []string{"upstream", "downstream"} {
		t.Run(stream, func(t *testing.T) {
			r, w, ps := weathered(t, func(s *fleet.Spec) { s.Submit.Timeout, s.Submit.Once = ttl, true })
			w.Bad(t, "timeout", stream, `"timeout": 0`)
			n := ps[0].Told()
			r.Until("calls to end", func() bool { return ps[0].Told() >= n+8 })
			w.Good(t)
			r.more(50)
			rep := r.Finish()
			// A write that has run is acknowledged for up to three seconds more.
			if rep.Slowest > ttl+4*time.Second {
				t.Errorf("a call with %v to live took %v", ttl, rep.Slowest)
			}
			if rep.Unknown+rep.Refused == 0 {
				t.Errorf("no call failed: the network was well. %s", rep)
			}
		})
	}
}

// The network is slow, cuts what is sent into slices, or resets connections.
func TestRow09BadNetwork(t *testing.T) {
	for toxic, attributes := range map[string]string{
		"latency":    `"latency": 20, "jitter": 20`,
		"slicer":     `"average_size": 20, "size_variation": 10, "delay": 50`,
		"bandwidth":  `"rate": 100`,
		"reset_peer": `"timeout": 30`,
		"limit_data": `"bytes": 5000`,
	} {
		t.Run(toxic, func(t *testing.T) {
			r, w, _ := weathered(t, nil)
			w.Bad(t, toxic, "upstream", attributes)
			w.Bad(t, toxic, "downstream", attributes)
			<-time.After(3 * ttl)
			w.Good(t)
			r.more(50)
			r.Finish()
		})
	}
}
