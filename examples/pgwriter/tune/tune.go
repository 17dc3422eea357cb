// Package tune helps in choosing Batch and Lookback: it tries settings with a
// load like the user's, shows what each of them did, and recommends one.
//
// Every setting is a run of its own, with its own queue and a function given to
// WrapBatch that does all the writes it gets in one transaction. A run is
// measured after a warm-up; when it has ended, what was accepted is compared with
// what took effect, and a difference is an error. Runs of different settings take
// turns, so that what else the machine does hits all alike, and figures that
// differ by less than repeated runs do are called the same.
//
// All is done in one process, which shares its processors with the servers if
// they run on the same machine. The figures are of that machine at that time;
// what to take away is the ratios.
package tune

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Place is where a sweep works. It leaves nothing there that is not the queue's:
// who calls Sweep removes the keys that have Name in them.
type Place struct {
	Name     string // of the schema, and the beginning of the queues' names
	Redis    redis.UniversalClient
	Postgres string // its URL; not used with -work
	Out      io.Writer
	Terminal bool // somebody looks at Out, in place
}

// Measured is what was found of a point: its figures in each round.
type Measured struct {
	Point
	Full []Figures // at full load
	Rate []Figures // at the user's rate
}

// Result is what a sweep found.
type Result struct {
	Points []Measured
	Rate   float64 // what Measured.Rate was measured at
	Counts Counts  // of all runs
}

// Sweep measures all points, and shows each as soon as it is known. What it
// has put into Postgres is removed when it returns.
func Sweep(ctx context.Context, s *Settings, at Place) (res Result, err error) {
	if s.Load.Work > 0 {
		return sweepWith(ctx, s, at, newStopwatch(s.Load))
	}
	ledger, err := openLedger(ctx, at.Postgres, at.Name, s.Load)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, ledger.close(ctx)) }()
	return sweepWith(ctx, s, at, ledger)
}

func sweepWith(ctx context.Context, s *Settings, at Place, does work) (Result, error) {
	w := &sweep{Settings: s, Place: at, work: does}
	for _, p := range s.points() {
		w.found = append(w.found, Measured{Point: p})
	}
	err := w.measure(ctx)
	return Result{w.found, w.rate, w.counts}, err
}

// sweep is a sweep that is under way.
type sweep struct {
	*Settings
	Place
	work   work
	found  []Measured
	rate   float64
	counts Counts
	runs   int // so far: each has a name of its own
}

func (w *sweep) measure(ctx context.Context) error {
	full := table{fullTitle(w.Settings), true}
	full.status(w.Place, "warming up")
	// What is slow the first time must not count against the first point.
	if _, err := w.run(ctx, w.found[0].Point, 0); err != nil {
		return err
	}
	full.status(w.Place, "")
	if err := w.pass(ctx, full, 0); err != nil {
		return err
	}
	if w.rate = w.Rate; w.rate == 0 {
		w.rate = rateFor(w.found)
	}
	return w.pass(ctx, table{rateTitle(w.rate), false}, w.rate)
}

// rateFor is a rate that every setting can do, so that their latencies can be
// compared: 70 % of what the slowest did at full load, in two digits.
func rateFor(found []Measured) float64 {
	slowest := math.Inf(1)
	for _, m := range found {
		slowest = min(slowest, median(writesOf(m.Full)))
	}
	rate := max(1, 0.7*slowest)
	step := math.Pow(10, math.Floor(math.Log10(rate))-1)
	return math.Floor(rate/step) * step
}

// pass measures all points under one load, round by round, and shows a point
// when its last round has ended.
func (w *sweep) pass(ctx context.Context, t table, rate float64) error {
	t.begin(w.Out)
	for round := range w.Rounds {
		for i := range w.found {
			m := &w.found[i]
			t.status(w.Place, fmt.Sprintf("round %d of %d: %v", round+1, w.Rounds, m.Point))
			f, err := w.run(ctx, m.Point, rate)
			t.status(w.Place, "")
			if err != nil {
				return err
			}
			to := t.of(m)
			*to = append(*to, f)
			if round == w.Rounds-1 {
				t.row(w.Out, w.Settings, *m, w.found[0])
			}
		}
	}
	return nil
}

func (w *sweep) run(ctx context.Context, p Point, rate float64) (Figures, error) {
	w.runs++
	r, err := newRun(w.Settings, p, rate, fmt.Sprintf("%s_%d", w.Name, w.runs), w.work).do(ctx, w.Redis)
	if err != nil {
		return Figures{}, fmt.Errorf("%v: %w", p, err)
	}
	w.counts.Accepted += r.counts.Accepted
	w.counts.Calls += r.counts.Calls
	w.counts.Effects.Writes += r.counts.Effects.Writes
	w.counts.Effects.Different += r.counts.Effects.Different
	w.counts.Effects.Transactions += r.counts.Effects.Transactions
	return r.Figures, nil
}

// typical has the medians of several runs' figures.
func typical(fs []Figures) Figures {
	f := Figures{
		Writes:       median(writesOf(fs)),
		Transactions: median(transactionsOf(fs)),
		Deferred:     median(each(fs, func(f Figures) float64 { return f.Deferred })),
		P50:          time.Duration(median(each(fs, func(f Figures) float64 { return float64(f.P50) }))),
		P99:          time.Duration(median(p99Of(fs))),
	}
	// Once may be a moment in which the machine did something else.
	f.Behind = len(fs) > 0 && !slices.ContainsFunc(fs, func(f Figures) bool { return !f.Behind })
	return f
}

func writesOf(fs []Figures) []float64 { return each(fs, func(f Figures) float64 { return f.Writes }) }

func transactionsOf(fs []Figures) []float64 {
	return each(fs, func(f Figures) float64 { return f.Transactions })
}

func p99Of(fs []Figures) []float64 {
	return each(fs, func(f Figures) float64 { return float64(f.P99) })
}

func each(fs []Figures, of func(Figures) float64) []float64 {
	var vs []float64
	for _, f := range fs {
		vs = append(vs, of(f))
	}
	return vs
}

// median of an even number of values is the middle between two. It is 0 for
// none.
func median(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(vs))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// spread is how far values are apart, relative to their median. It is 0 if there
// is nothing to compare.
func spread(vs []float64) float64 {
	if m := median(vs); m > 0 {
		return (slices.Max(vs) - slices.Min(vs)) / m
	}
	return 0
}
