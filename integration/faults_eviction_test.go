package integration_test

import (
	"strconv"
	"strings"
	"testing"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/integration/fleet"
)

// number is a field of INFO.
func (r *rig) number(t *testing.T, section, field string) int {
	t.Helper()
	_, rest, _ := strings.Cut(r.redis.Do(t, "info", section), "\r\n"+field+":")
	digits, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return n
}

// A Redis that evicts whatever it likes is pointed out when a worker starts. It
// then throws away a part of the queue. What is gone is gone; that is said of
// each write whose place is left, what is left is done in order and once, and
// payloads without a place are found by Check.
func TestRow15EvictingTheQueue(t *testing.T) {
	r := newRig(t, "--maxmemory-policy", "allkeys-lru")
	r.MayLose = true
	w := r.Start(fleet.Spec{Run: true})
	r.Until("a warning", func() bool { return strings.Contains(w.Errors(), "maxmemory-policy") })
	w.Stop()
	deep := r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 4, Goroutines: 4, Writes: 100, Push: 100, Pad: 5000}})
	deep.Accepted(400)
	r.redis.Do(t, "config", "set", "maxmemory", r.number(t, "memory", "used_memory")-700_000)
	r.Until("Redis to evict", func() bool {
		_ = r.Redis().Set(t.Context(), "something", "else", 0).Err() // it evicts when it is written to
		return r.number(t, "stats", "evicted_keys") > 50
	})
	r.redis.Do(t, "config", "set", "maxmemory", 0)
	w.Continue()
	// A lane that has lost its place in the index gets it back with its next write.
	r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 4, Goroutines: 4, Writes: 25, Push: 100}}).Accepted(100)
	rep := r.End()
	t.Logf("%d keys evicted; %s", r.number(t, "stats", "evicted_keys"), rep)
	if rep.LostWrites == 0 || rep.Torn == 0 && len(rep.Violations) == 0 {
		t.Errorf("nothing was lost, or nobody has noticed: %s", rep)
	}
	for _, v := range rep.Violations {
		if !strings.Contains(v, "has a payload and no place") {
			t.Error(v)
		}
	}
	findings, err := r.Queue().Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stray := false
	for _, f := range findings {
		stray = stray || f.Code == deferral.CodeStrayPayload
	}
	if len(rep.Violations) > 0 && !stray {
		t.Errorf("Check finds no stray payload: %v", findings)
	}
}

// A Redis that evicts what has an end throws away the locks. Who held one is
// told, and another has it.
func TestRow15EvictingTheLocks(t *testing.T) {
	r := newRig(t, "--maxmemory-policy", "volatile-ttl")
	pair(r, nil)
	r.Until("a warning", func() bool { return strings.Contains(r.Processes()[0].Errors(), "maxmemory-policy") })
	holder := r.Start(fleet.Spec{Run: true, Gate: fleet.Gate{At: "before begin"}})
	holder.AtGate()
	before := r.number(t, "stats", "evicted_keys")
	r.redis.Do(t, "config", "set", "maxmemory", "1")
	r.Until("the holder to be told that its lock is lost", func() bool { return holder.ToldLost() > 0 })
	r.redis.Do(t, "config", "set", "maxmemory", "0")
	holder.Open()
	if r.number(t, "stats", "evicted_keys") == before {
		t.Error("nothing was evicted")
	}
	r.more(20)
	t.Log(r.Finish())
}
