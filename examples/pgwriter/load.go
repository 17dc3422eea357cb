package main

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// load is what the processes are to do. Each write follows from it and from the
// writer's number and its own, so that a process that takes over from a dead
// one submits the same writes under the same IDs.
type load struct {
	Processes int
	Writers   int // in each process
	Resources int
	Skew      float64
	Writes    int // altogether
	Batch     int
	Lookback  time.Duration
	Takes     time.Duration // how long the handler takes beside its SQL
	Kill      int
	Naive     bool
	Seed      uint64
}

func (l *load) flags(f *flag.FlagSet) {
	f.IntVar(&l.Processes, "processes", 4, "worker `processes`")
	f.IntVar(&l.Writers, "writers", 8, "`writers` in each process: each submits one write after the other")
	f.IntVar(&l.Resources, "resources", 100, "`accounts` that are written to")
	f.Float64Var(&l.Skew, "skew", 1.0, "how unevenly: account number k is chosen in proportion to 1/k^`skew` (Zipf); 0 is evenly")
	f.IntVar(&l.Writes, "writes", 10_000, "`writes` altogether")
	f.IntVar(&l.Batch, "batch", 100, "the most `writes` of an account that are fetched at once")
	f.DurationVar(&l.Lookback, "lookback", 0, "how `long` a deferred write waits before its account is looked at; 0: until the lock is free")
	f.DurationVar(&l.Takes, "handler", 2*time.Millisecond, "how `long` the handler takes, beside its SQL")
	f.IntVar(&l.Kill, "kill", 4, "`processes` to kill on the way, each replaced by a new one")
	f.BoolVar(&l.Naive, "naive", false, "the plain recipe instead of deferlock: lock, push on conflict, pop; no order, no fence")
	f.Uint64Var(&l.Seed, "seed", 0, "repeats the writes of an earlier run; 0: new ones")
}

func (l *load) validate() error {
	switch {
	case l.Processes < 1 || l.Processes > 32:
		return fmt.Errorf("-processes is %d: want 1 to 32", l.Processes)
	case l.Writers < 1 || l.Writers > 1000:
		return fmt.Errorf("-writers is %d: want 1 to 1000", l.Writers)
	case l.Resources < 1 || l.Resources > 1_000_000:
		return fmt.Errorf("-resources is %d: want 1 to 1000000", l.Resources)
	case !(l.Skew >= 0 && l.Skew <= 10):
		return fmt.Errorf("-skew is %v: want 0 to 10", l.Skew)
	case l.Writes < 1 || l.Writes > 10_000_000:
		return fmt.Errorf("-writes is %d: want 1 to 10000000", l.Writes)
	case l.Batch < 1 || l.Batch > 1000:
		return fmt.Errorf("-batch is %d: want 1 to 1000", l.Batch)
	case l.Lookback < 0 || l.Lookback > time.Hour:
		return fmt.Errorf("-lookback is %v: want 0 to 1h", l.Lookback)
	case l.Takes < 0 || l.Takes > 10*time.Second:
		return fmt.Errorf("-handler is %v: want 0 to 10s", l.Takes)
	case l.Kill < 0:
		return errors.New("-kill is negative")
	}
	return nil
}

// lockTTL is how long a lane waits after its holder was killed. The default is
// 10 s; a demonstration is impatient. pgfence ends a transaction in which
// nothing has happened for half as long, so the handler must be quicker.
func (l *load) lockTTL() time.Duration { return max(2*time.Second, 4*l.Takes) }

// writers is how many writers there are in all processes.
func (l *load) writers() int { return l.Processes * l.Writers }

// share is how many writes a writer submits.
func (l *load) share(writer int) int {
	n := l.Writes / l.writers()
	if writer < l.Writes%l.writers() {
		n++
	}
	return n
}

// credits makes the writes of a load.
type credits struct {
	load
	sums []float64 // sums[k] is the weight of the accounts 0 to k
}

func newLoad(l load) *credits {
	c := &credits{load: l, sums: make([]float64, l.Resources)}
	sum := 0.0
	for k := range c.sums {
		sum += math.Pow(float64(k+1), -l.Skew)
		c.sums[k] = sum
	}
	return c
}

// of returns the seq-th write of a writer; the first is number 1.
func (c *credits) of(writer, seq int) Credit {
	r := rand.New(rand.NewPCG(c.Seed, uint64(writer)<<32|uint64(seq)))
	at := r.Float64() * c.sums[len(c.sums)-1]
	return Credit{
		ID:      fmt.Sprintf("w%d-%d", writer, seq),
		Account: c.account(min(sort.SearchFloat64s(c.sums, at), len(c.sums)-1)),
		Amount:  r.Int64N(2001) - 1000,
	}
}

func (c *credits) account(k int) string { return fmt.Sprintf("account-%d", k+1) }

// hottest is the share of all writes that goes to the first account.
func (c *credits) hottest() float64 { return c.sums[0] / c.sums[len(c.sums)-1] }
