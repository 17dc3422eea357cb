package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// workload is one thing that peers are put through.
type workload struct {
	Group string // what -only chooses
	Name  string
	About string
	Cases []testCase
	Base  string // the case that the others are set beside
	Once  bool   // one round is enough: what it measures does not vary
	Fewer bool   // three rounds do for five

	// end removes what rounds have left for later ones. It may be nil.
	end func(*bench, context.Context) error
}

// roundsOf is how many rounds there are of w in a run of n.
func (w workload) roundsOf(n int) int {
	switch {
	case w.Once:
		return 1
	case w.Fewer:
		return (3*n + 4) / 5
	}
	return n
}

// testCase is one peer under a workload.
type testCase struct {
	Name  string
	Kind  peers.Kind
	round func(ctx context.Context, b *bench) (measure.Figures, error)
}

// round puts one peer through a workload once.
type round func(ctx context.Context, b *bench, k peers.Kind) (measure.Figures, error)

// each makes a case of every kind.
func each(kinds []peers.Kind, r round) []testCase {
	var cases []testCase
	for _, k := range kinds {
		cases = append(cases, testCase{Name: k.Name, Kind: k, round: func(ctx context.Context, b *bench) (measure.Figures, error) {
			return r(ctx, b, k)
		}})
	}
	return cases
}

// size is how much is done: all of it, or as little as shows something.
type size struct {
	rounds   int
	submit   time.Duration // for how long writes are handed over
	patience time.Duration // how much longer the rest of them is waited for
	hot      int           // writes to one hot resource
	paced    time.Duration // for how long writes come in at a given rate
	backlogs []int         // numbers of writes that wait
	memory   int           // writes that wait while memory is looked at
	idle     time.Duration // for how long nothing is done
	tries    []peers.Kind  // what the workloads with conflicts are for
}

var (
	full = size{rounds: 5, submit: time.Second, patience: 2 * time.Second, hot: 1000, paced: 2 * time.Second,
		backlogs: []int{1_000, 100_000, 1_000_000}, memory: 50_000, idle: 15 * time.Second, tries: queueing}
	quick = size{rounds: 2, submit: 200 * time.Millisecond, patience: time.Second, hot: 300, paced: time.Second,
		backlogs: []int{1_000, 10_000}, memory: 10_000, idle: 2 * time.Second,
		tries: slices.DeleteFunc(slices.Clone(queueing), func(k peers.Kind) bool { return k.Name == peers.Kaito3.Name })}
)

// most is how many writes a round of a second can have at the most.
const most = 200_000

var (
	locking  = []peers.Kind{peers.Ping, peers.Bare, peers.Redislock, peers.Kaito, peers.Asynq, peers.Delayqueue, peers.Deferlock}
	queueing = []peers.Kind{peers.Bare, peers.Redislock, peers.Kaito, peers.Kaito3, peers.Asynq, peers.Delayqueue, peers.Deferlock}
	keeping  = []peers.Kind{peers.Kaito, peers.Asynq, peers.Delayqueue, peers.Deferlock}
)

// workloads returns the table of all workloads.
func workloads(z size) []workload {
	var all []workload
	for _, writers := range []int{1, 16, 64, 256} {
		all = append(all, workload{
			Group: "uncontended", Name: plural(writers, "writer"), Base: peers.Redislock.Name,
			About: "Each writer has resources of its own, the work takes no time.",
			Cases: each(locking, loaded(load.Load{Writers: writers, For: z.submit, Most: most, Patience: z.submit + z.patience})),
		})
	}
	all = append(all, hot("1 ms of work", z.hot, time.Millisecond, queueing, z), hot("no work", 4*z.hot, 0, z.tries, z))
	all = append(all, memoryWorkloads(z)...)
	all = append(all, workload{
		Group: "paced", Name: "400 writes a second", Base: peers.Redislock.Name,
		About: "One resource, 1 ms of work, writes that come in at random moments from 16 writers: 0.4 of what is possible.",
		Fewer: true,
		Cases: each(z.tries, loaded(load.Load{Writers: 16, Resources: 1, Takes: time.Millisecond, PerSecond: 400,
			For: z.paced, Most: most, Patience: z.paced + 4*time.Second})),
	})
	for _, resources := range []int{8, 1_000, 100_000} {
		all = append(all, workload{
			Group: "zipf", Name: fmt.Sprintf("%d resources", resources), Base: peers.Redislock.Name,
			About: "16 writers, resources drawn from a Zipf distribution with exponent 1.1, the work takes no time.",
			Fewer: true,
			Cases: each(z.tries[1:], loaded(load.Load{Writers: 16, Resources: resources, Skew: 1.1, For: z.submit / 2, Most: most,
				Patience: z.submit/2 + 3*time.Second + z.patience/2})),
		})
	}
	all = append(all, delayWorkloads(z)...)
	all = append(all, backlogWorkloads(z)...)
	all = append(all, processWorkloads(z)...)
	return append(all, idleWorkload(z))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func hot(name string, writes int, takes time.Duration, kinds []peers.Kind, z size) workload {
	return workload{
		Group: "hot", Name: name, Base: peers.Redislock.Name,
		About: fmt.Sprintf("16 writers hand over %d writes to one resource as fast as they can.", writes),
		Cases: each(kinds, loaded(load.Load{Writers: 16, Resources: 1, Takes: takes, Most: writes, For: time.Minute,
			Patience: time.Duration(writes)*takes + 3*time.Second + z.patience})),
	}
}

// loaded is a round of a load in this process.
func loaded(l load.Load) round {
	return func(ctx context.Context, b *bench, k peers.Kind) (measure.Figures, error) {
		return b.loaded(ctx, k, l, b.server.optionsOf(0, b.pool))
	}
}
