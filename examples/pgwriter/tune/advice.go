package tune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Advice is a recommended point, and why it is.
type Advice struct {
	Pick Measured
	Text string // several lines
}

// enough is the share of the most writes a second that a point must do to be
// recommended: more throughput than that is not worth a later write.
const enough = 0.9

// Recommend picks a point by the rule that the help states; p99 is what a write
// may take, or 0. The same result always leads to the same advice. A result must
// have a point, and a point must have been measured under both loads.
func Recommend(res Result, p99 time.Duration) Advice {
	a := adviser{Result: res, noise: noiseOf(res.Points), p99: p99}
	allowed := without(res.Points, func(m Measured) bool { return p99 > 0 && typical(m.Rate).P99 > p99 })
	if len(allowed) == 0 {
		a.hopeless()
		allowed, a.p99 = res.Points, 0
	}
	a.best = slices.MaxFunc(allowed, func(x, y Measured) int {
		return cmp.Compare(median(writesOf(x.Full)), median(writesOf(y.Full)))
	})
	good := without(allowed, func(m Measured) bool {
		return median(writesOf(m.Full)) < enough*median(writesOf(a.best.Full)) && tells(a.noise.writes, writesOf(m.Full), writesOf(a.best.Full))
	})
	what, level := p99Of, a.noise.p99
	if a.p99 > 0 {
		what, level = transactionsOf, a.noise.transactions
	}
	a.pick = least(good, what, level)
	a.recommend()
	a.reason()
	a.longer()
	return Advice{a.pick, a.text.String()}
}

// least is the point with the least of what at the user's rate; if others cannot
// be told from it, the first of them.
func least(ms []Measured, what func([]Figures) []float64, level float64) Measured {
	lowest := slices.MinFunc(ms, func(x, y Measured) int { return cmp.Compare(median(what(x.Rate)), median(what(y.Rate))) })
	same := without(ms, func(m Measured) bool { return tells(level, what(m.Rate), what(lowest.Rate)) })
	return slices.MinFunc(same, func(x, y Measured) int {
		return cmp.Or(cmp.Compare(x.Lookback, y.Lookback), cmp.Compare(x.Batch, y.Batch))
	})
}

func without(ms []Measured, which func(Measured) bool) []Measured {
	return slices.DeleteFunc(slices.Clone(ms), which)
}

// noise is by how much a run differs from its repetition: in writes a second at
// full load, and in what is measured at the user's rate.
type noise struct{ writes, transactions, p99 float64 }

// Figures are never taken to be more exact than that, with several rounds and
// with one.
const (
	leastNoise    = 0.05
	oneRoundNoise = 0.10

	// tooNoisy is when the advice is worth little.
	tooNoisy = 0.30
)

// noiseOf is the noise of a typical point: that of a single one is known from a
// handful of rounds, which may be close to each other by chance.
func noiseOf(ms []Measured) noise {
	of := func(values func(Measured) []float64) float64 {
		var spreads []float64
		for _, m := range ms {
			if len(values(m)) < 2 {
				return oneRoundNoise
			}
			spreads = append(spreads, spread(values(m)))
		}
		return max(leastNoise, median(spreads))
	}
	return noise{
		writes:       of(func(m Measured) []float64 { return writesOf(m.Full) }),
		transactions: of(func(m Measured) []float64 { return transactionsOf(m.Rate) }),
		p99:          of(func(m Measured) []float64 { return p99Of(m.Rate) }),
	}
}

// tells says whether two points' values differ by more than their own rounds, and
// those of a typical point, do.
func tells(level float64, a, b []float64) bool {
	if median(a) > median(b) {
		a, b = b, a
	}
	return slices.Max(a) < slices.Min(b) && median(b) > median(a)*(1+level)
}

// adviser writes down what it recommends, and why.
type adviser struct {
	Result
	noise noise
	p99   time.Duration // what a write may take; 0: as little as possible
	best  Measured      // at full load
	pick  Measured
	text  strings.Builder
}

func (a *adviser) say(format string, args ...any) { fmt.Fprintf(&a.text, format, args...) }

func (a *adviser) hopeless() {
	quickest := slices.MinFunc(a.Points, func(x, y Measured) int { return cmp.Compare(median(p99Of(x.Rate)), median(p99Of(y.Rate))) })
	a.say("No setting keeps p99 within %s at %s writes a second: %v comes closest with %s. Without that limit:\n",
		human(a.p99), number(a.Rate), quickest.Point, human(typical(quickest.Rate).P99))
}

func (a *adviser) recommend() {
	full, rate := typical(a.pick.Full), typical(a.pick.Rate)
	a.say("Recommended: %v: %s writes per transaction", a.pick.Point, number(full.PerTransaction()))
	if ref, name := a.reference(); name != "" {
		if tells(a.noise.writes, writesOf(a.pick.Full), writesOf(ref.Full)) {
			a.say(", %s times the throughput of %s", ratio(full.Writes, typical(ref.Full).Writes), name)
		} else {
			a.say(", no difference in throughput from %s that this run can tell", name)
		}
	}
	a.say(", p99 %s at %s writes a second.\n", human(rate.P99), number(a.Rate))
	if rate.Behind {
		a.say("But it cannot do %s writes a second: what waits grows.\n", number(a.Rate))
	}
}

func (a *adviser) reason() {
	what, limit := "has a lower p99", ""
	if a.p99 > 0 {
		what, limit = "commits less often", fmt.Sprintf(" and a p99 of %s at most", human(a.p99))
	}
	a.say("Reason: of the settings with at least %s of the most writes a second (%.0f, %v)%s, none %s that this run can tell.\n",
		percent(enough), typical(a.best.Full).Writes, a.best.Point, limit, what)
	a.say("Taken for noise: differences below %s of writes a second, %s of transactions a second and %s of p99.\n",
		percent(a.noise.writes), percent(a.noise.transactions), percent(a.noise.p99))
	if max(a.noise.writes, a.noise.transactions, a.noise.p99) > tooNoisy {
		a.say("That is much: run it again on a quieter machine, or with a longer -time and more -rounds.\n")
	}
}

// longer says what other lookbacks make of the same writes: the choice is the
// user's, who alone knows what a commit costs and what a later write does.
func (a *adviser) longer() {
	here := slices.Clone(a.Points)
	here = slices.DeleteFunc(here, func(m Measured) bool { return m.Batch != a.pick.Batch })
	if len(here) < 2 {
		return
	}
	a.say("What a lookback buys, and what it costs, at %s writes a second with batch %d:\n", number(a.Rate), a.pick.Batch)
	for _, m := range here {
		f := typical(m.Rate)
		a.say("  lookback %-7s %6s writes per transaction, %6.0f commits a second, p99 %s\n",
			human(m.Lookback)+":", number(f.PerTransaction()), f.Transactions, human(f.P99))
	}
}

// reference is what the recommended point is compared with, and what it is
// called: the shortest lookback with the same batch, or the smallest batch if the
// lookback is the shortest. The name is empty if nothing else was tried.
func (a *adviser) reference() (Measured, string) {
	find := func(p Point) Measured {
		return a.Points[slices.IndexFunc(a.Points, func(m Measured) bool { return m.Point == p })]
	}
	shortest, smallest := a.pick.Lookback, a.pick.Batch
	for _, m := range a.Points {
		if m.Batch == a.pick.Batch {
			shortest = min(shortest, m.Lookback)
		}
		if m.Lookback == a.pick.Lookback {
			smallest = min(smallest, m.Batch)
		}
	}
	switch {
	case shortest < a.pick.Lookback:
		return find(Point{a.pick.Batch, shortest}), "lookback " + human(shortest)
	case smallest < a.pick.Batch:
		return find(Point{smallest, a.pick.Lookback}), fmt.Sprintf("batch %d", smallest)
	}
	return Measured{}, ""
}

func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return number(a / b)
}
