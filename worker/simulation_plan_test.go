package worker_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/deferlock/deferlock/internal/history"
	"github.com/deferlock/deferlock/worker"
)

// plan is all that a seed decides before its run begins.
type plan struct {
	seed        uint64
	calm        bool // no faults but those of functions: then much more can be checked
	once        bool // RunOnce in a loop, in the place of Run
	cfg         worker.Config
	processes   int
	runners     int // processes that run the queue
	readTimeout time.Duration
	network     odds
	typical     time.Duration // a function's time
	horizon     time.Duration // when all faults end
	end         time.Duration // when the last write has been submitted, too
	submissions []planned
	items       map[history.Ref]item
	failures    map[history.Ref]int // calls that fail
}

// odds are those of one flight.
type odds struct{ refuse, drop, slow float64 }

// planned is a submission at a moment, by one of the processes.
type planned struct {
	submission
	at time.Duration
	by int
}

const simName = "sim"

func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	p := &plan{
		seed: seed, calm: rng.IntN(4) == 0, once: rng.IntN(8) == 0, processes: 1 + rng.IntN(4),
		readTimeout: between(rng, 200*time.Millisecond, 3*time.Second),
		typical:     between(rng, time.Millisecond, 80*time.Millisecond),
		horizon:     between(rng, 2*time.Second, 25*time.Second),
		items:       map[history.Ref]item{}, failures: map[history.Ref]int{},
	}
	p.runners = 1 + rng.IntN(p.processes)
	ttl := between(rng, 300*time.Millisecond, 3*time.Second)
	base := between(rng, 5*time.Millisecond, 300*time.Millisecond)
	p.cfg = worker.Config{
		Name: simName, Batch: 1 + rng.IntN(5), Lookback: pick(rng, 0, 0, time.Second, 3*time.Second),
		Concurrency: pick(rng, 1, 2, 16), LockTTL: ttl, MaxHold: between(rng, 4*ttl, 30*ttl),
		Grace: between(rng, 10*time.Millisecond, 2*time.Second), MaxAttempts: 1 + rng.IntN(6),
		Backoff:   func(n int) time.Duration { return base << min(n-1, 6) },
		OnFailure: pick(rng, worker.LaneWaits, worker.LaneWaits, worker.WriteStepsAside, worker.LaneHalts),
		Shards:    1 + rng.IntN(2), DeferFailures: rng.IntN(2) == 0,
		Poll: between(rng, 500*time.Millisecond, 5*time.Second),
	}
	if p.calm {
		p.cfg.Concurrency, p.cfg.MaxHold = 64, 100*ttl // a free runner for every lane, no batch too long
	}
	p.network = odds{rng.Float64() * 0.04, rng.Float64() * 0.1, pick(rng, 0, 0.02, 0.05, 0.15)}
	resources, failing, repeating := 1+rng.IntN(5), pick(rng, 0, 10, 30), pick(rng, 0, 10, 60)
	if !p.calm && rng.IntN(4) == 0 {
		// A storm of late copies: few writes, submitted over and over.
		p.readTimeout, p.network.slow, p.cfg.Lookback = between(rng, 100*time.Millisecond, 300*time.Millisecond), 0.2, 0
		p.typical = between(rng, 30*time.Millisecond, 300*time.Millisecond)
		resources, repeating = 1+rng.IntN(2), 75
	}
	p.draw(rng, resources, failing, repeating)
	p.end = p.horizon
	for _, s := range p.submissions {
		p.end = max(p.end, s.at)
	}
	return p
}

// draw draws what is submitted: to so many resources, of which so many percent
// fail at first, and so many are submitted again.
func (p *plan) draw(rng *rand.Rand, resources, failing, repeating int) {
	used := kinds[:1+rng.IntN(len(kinds))]
	last := 50 * time.Millisecond // let everybody subscribe first
	for n := range 8 + rng.IntN(32) {
		if len(p.submissions) > 60 {
			break
		}
		// Often in bursts.
		if rng.IntN(3) == 0 {
			last = between(rng, 50*time.Millisecond, p.horizon)
		}
		s := planned{by: rng.IntN(p.processes), at: last + between(rng, 0, 3*p.typical)}
		resource := "r" + strconv.Itoa(min(rng.IntN(resources), rng.IntN(resources)))
		s.submission = submission{
			item: item{ID: fmt.Sprintf("w%d", n), Resource: resource, N: n}, kind: used[rng.IntN(len(used))], repeats: rng.IntN(4),
		}
		if s.kind == "alone" {
			s.Resource = aloneResource(s.ID)
		}
		if s.push = rng.IntN(6) == 0; s.push && rng.IntN(2) == 0 {
			s.delay = between(rng, time.Millisecond, 5*time.Second)
		}
		if rng.IntN(12) == 0 && !p.calm {
			s.patience = between(rng, time.Millisecond, time.Second)
		}
		if rng.IntN(100) < failing {
			p.failures[s.ref()] = 1 + rng.IntN(p.cfg.MaxAttempts+1)
		}
		p.items[s.ref()] = s.item
		p.submissions = append(p.submissions, s)
		for rng.IntN(100) < repeating { // the same write once more
			s.at, s.by = s.at+between(rng, 0, 3*time.Second), rng.IntN(p.processes)
			p.submissions = append(p.submissions, s)
		}
	}
}

// work draws how long a function takes: mostly what is typical, sometimes longer
// than a lock lives without being renewed.
func (p *plan) work(rng *rand.Rand) time.Duration {
	if !p.calm && rng.IntN(40) == 0 {
		return between(rng, 0, p.cfg.MaxHold*5/4)
	}
	if rng.IntN(10) == 0 {
		return between(rng, 0, 2*p.cfg.LockTTL)
	}
	return between(rng, 0, 2*p.typical)
}

// aloneResource is what the records have for the resource of a write that stands
// alone.
func aloneResource(id string) string { return "alone " + id }

// refOf names a write as the records do.
func refOf(resource, id string) history.Ref {
	if resource == "" {
		resource = aloneResource(id)
	}
	return history.Ref{Resource: resource, ID: id}
}

// refFromKey takes apart what the queue's keys call a write.
func refFromKey(s string) history.Ref {
	resource, id, _ := strings.Cut(s, "\x00")
	return refOf(resource, id)
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)+1))
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }
