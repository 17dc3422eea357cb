package tune

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Load is what the writers do, at every point alike.
type Load struct {
	Writers     int
	Resources   int
	Skew        float64
	Outstanding int // the most writes that are not done, at full load
	Connections int // the most transactions at once
	Push        bool

	// Work is how long a transaction takes, and Each how much longer for every
	// write in it. With Work 0 there is a real one in Postgres instead.
	Work, Each time.Duration
}

// Point is one setting to be tried.
type Point struct {
	Batch    int
	Lookback time.Duration
}

// Settings is what a sweep tries, for how long, and what is made of it.
type Settings struct {
	Load      Load
	Batches   []int
	Lookbacks []time.Duration
	Rate      float64       // writes a second; 0: see rateFor
	Time      time.Duration // that a run is measured
	Rounds    int
	P99       time.Duration // what a write may take; 0: as little as possible
	Plot      string        // the file; "": none
	Seed      uint64
}

// points are the settings to be tried, in the order in which they are.
func (s *Settings) points() []Point {
	var all []Point
	for _, l := range s.Lookbacks {
		for _, b := range s.Batches {
			all = append(all, Point{b, l})
		}
	}
	return all
}

// warmUp is how long a point runs before it is measured: long enough for lanes
// to be drained at different moments.
func (s *Settings) warmUp(p Point) time.Duration { return max(s.Time/2, p.Lookback*3/2) }

// estimate is about how long the sweep takes if no account is far behind the
// others at full load.
func (s *Settings) estimate() time.Duration {
	const loads, drained = 2, 500 * time.Millisecond
	var sum time.Duration
	for _, p := range s.points() {
		sum += s.warmUp(p) + s.Time + p.Lookback + drained
	}
	return loads * time.Duration(s.Rounds) * sum
}

// Parse returns the settings that args stand for. What is wrong with them, or
// the help that they ask for, is also written to problems.
func Parse(args []string, problems io.Writer) (*Settings, error) {
	s := &Settings{}
	f := flag.NewFlagSet("pgwriter -tune", flag.ContinueOnError)
	f.SetOutput(problems)
	f.Usage = func() {
		fmt.Fprintln(problems, help)
		f.PrintDefaults()
	}
	batches, lookbacks := s.flags(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	err := s.complete(*batches, *lookbacks, f.Args())
	if err != nil {
		fmt.Fprintln(problems, "pgwriter -tune:", err)
		return nil, err
	}
	return s, nil
}

func (s *Settings) flags(f *flag.FlagSet) (batches, lookbacks *string) {
	l := &s.Load
	f.IntVar(&l.Writers, "writers", 32, "`writers`: each submits one write after the other")
	f.IntVar(&l.Resources, "resources", 100, "`accounts` that are written to")
	f.Float64Var(&l.Skew, "skew", 1.0, "how unevenly: account number k is chosen in proportion to 1/k^`skew` (Zipf); 0 is evenly")
	f.IntVar(&l.Outstanding, "outstanding", 10_000, "at full load, the most `writes` that are accepted and not yet done; a long lookback needs many")
	f.IntVar(&l.Connections, "connections", 16, "the most `transactions` at once")
	f.BoolVar(&l.Push, "push", false, "submit with Push, as a job queue would: every write is deferred; otherwise with Do")
	f.DurationVar(&l.Work, "work", 0, "how `long` a transaction takes, without Postgres; 0: a transaction in Postgres, with fence and record (worker/pgfence)")
	f.DurationVar(&l.Each, "each", 0, "with -work: how much `longer` it takes for each write in it")
	batches = f.String("batches", "1,5,20,100", "the `batches` to try")
	lookbacks = f.String("lookbacks", "0,50ms,200ms,1s", "the `lookbacks` to try")
	f.Float64Var(&s.Rate, "rate", 0, "the `writes` a second that your load has; 0: 70 % of what the slowest setting can do")
	f.DurationVar(&s.Time, "time", time.Second, "how `long` each run is measured, after a warm-up")
	f.IntVar(&s.Rounds, "rounds", 2, "`runs` of each setting under each load, in turn; what is shown is the median")
	f.DurationVar(&s.P99, "p99", 0, "the `longest` p99 that your writes may have, which is then used to commit less often; 0: the lowest there is")
	f.StringVar(&s.Plot, "plot", "tune.svg", "the `file` to draw to, .svg or .png; empty: none")
	f.Uint64Var(&s.Seed, "seed", 1, "which accounts the writes go to, and when they come")
	return batches, lookbacks
}

func (s *Settings) complete(batches, lookbacks string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("%q: there are flags only", rest[0])
	}
	var err error
	if s.Batches, err = list(batches, strconv.Atoi); err != nil {
		return fmt.Errorf("-batches: %w", err)
	}
	if s.Lookbacks, err = list(lookbacks, time.ParseDuration); err != nil {
		return fmt.Errorf("-lookbacks: %w", err)
	}
	return errors.Join(s.Load.validate(), s.validate())
}

// list reads what is between commas: ascending, each once.
func list[T int | time.Duration](text string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for item := range strings.SplitSeq(text, ",") {
		v, err := parse(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func (l *Load) validate() error {
	switch {
	case l.Writers < 1 || l.Writers > 1000:
		return fmt.Errorf("-writers is %d: want 1 to 1000", l.Writers)
	case l.Resources < 1 || l.Resources > 1_000_000:
		return fmt.Errorf("-resources is %d: want 1 to 1000000", l.Resources)
	case !(l.Skew >= 0 && l.Skew <= 10):
		return fmt.Errorf("-skew is %v: want 0 to 10", l.Skew)
	case l.Outstanding < l.Writers || l.Outstanding > 1_000_000:
		return fmt.Errorf("-outstanding is %d: want at least the number of writers, at most 1000000", l.Outstanding)
	case l.Connections < 1 || l.Connections > 1000:
		return fmt.Errorf("-connections is %d: want 1 to 1000", l.Connections)
	case l.Work < 0 || l.Work > 10*time.Second:
		return fmt.Errorf("-work is %v: want 0 to 10s", l.Work)
	case l.Each < 0 || l.Each > time.Second || l.Each > 0 && l.Work == 0:
		return fmt.Errorf("-each is %v: want 0 to 1s, and -work beside it", l.Each)
	}
	return nil
}

func (s *Settings) validate() error {
	switch {
	case s.Batches[0] < 1 || s.Batches[len(s.Batches)-1] > 1000:
		return fmt.Errorf("-batches has %v: want 1 to 1000", s.Batches)
	case s.Lookbacks[0] < 0 || s.Lookbacks[len(s.Lookbacks)-1] > time.Minute:
		return fmt.Errorf("-lookbacks has %v: want 0 to 1m", s.Lookbacks)
	case !(s.Rate >= 0) || math.IsInf(s.Rate, 0):
		return fmt.Errorf("-rate is %v: want a number of writes a second", s.Rate)
	case s.Time < 10*time.Millisecond || s.Time > time.Hour:
		return fmt.Errorf("-time is %v: want 10ms to 1h", s.Time)
	case s.Rounds < 1 || s.Rounds > 100:
		return fmt.Errorf("-rounds is %d: want 1 to 100", s.Rounds)
	case s.P99 < 0:
		return fmt.Errorf("-p99 is %v: want a budget", s.P99)
	case s.Plot != "" && !slices.Contains([]string{".svg", ".png"}, filepath.Ext(s.Plot)):
		return fmt.Errorf("-plot is %q: want a name that ends with .svg or .png", s.Plot)
	}
	return nil
}

const help = `pgwriter -tune helps in choosing Batch and Lookback for a load like yours.

It tries every batch with every lookback, with a function given to WrapBatch
that does all the writes it gets in one transaction, and under two loads:

  full load   the writers submit as fast as they can, but at most -outstanding
              writes are unfinished. It tells how much a setting can do.
  your rate   writes come at random moments, so many a second (-rate). It tells
              how long a write takes when there is no jam.

Each run begins with a warm-up that is not counted, and afterwards what was
accepted is compared with what took effect. The columns:

  writes/s    writes that took effect, a second: at full load, from the end of the
              warm-up until nothing is left to be done. The lookback does not
              count for what is left when the writers stop.
  ±           how far the rounds were apart: half of it, relative to the median
  × first     writes/s, relative to the first row
  writes/tx   writes per transaction
  tx/s        transactions that were committed, a second
  deferred    share of the writes that did not run in their call of Do
  p50, p99    time from the moment at which a write was due to be submitted until
              it has taken effect, for half of the writes and for all but the
              slowest hundredth

What is recommended is one of the settings that do at least 90 % of the most
writes a second at full load:

  without -p99  the one with the lowest p99 at your rate
  with -p99     of those whose p99 at your rate is not over it, the one that
                commits least often at your rate

Of several that this run cannot tell apart, it is the one with the shortest
lookback, and of those the one with the smallest batch. Two figures cannot be told
apart when their rounds overlap, or when they differ by less than rounds of one
setting typically do (5 % at least; 10 % if there is one round only).

It uses the Redis of REDIS_URL and the Postgres of DATABASE_URL, or starts its
own, and removes what it has put there. A Postgres that it starts waits for the
disk at each commit.

Flags:`
