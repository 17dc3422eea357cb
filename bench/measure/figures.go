package measure

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Metric names a figure.
type Metric string

// The figures of a round. What is per write is per write that was done.
const (
	Done        Metric = "writes"
	Rate        Metric = "writes/s"
	Bound       Metric = "share of bound" // of the serial time of one resource
	RoundTrips  Metric = "round trips"
	Commands    Metric = "commands"    // that Redis executed, those within scripts included
	RedisCPU    Metric = "Redis µs"    // user and system time
	ClientCPU   Metric = "client µs"   // user and system time of the processes that write
	Allocations Metric = "allocations" // in the processes that write
	Refused     Metric = "refused"     // attempts at a lock that found it taken
	Deferred    Metric = "deferred"    // the share that was not done by the call
	HandoverP50 Metric = "hand-over p50 µs"
	HandoverP99 Metric = "hand-over p99 µs"
	HandoverMax Metric = "hand-over max µs"
	DoneP50     Metric = "done p50 ms" // from the call to the end of the write
	DoneP99     Metric = "done p99 ms"
	Unfinished  Metric = "unfinished"  // writes not done when the round was cut off
	Failed      Metric = "failed"      // calls that returned an error
	Twice       Metric = "twice"       // writes done more than once
	Overlaps    Metric = "overlaps"    // writes that began while another one of their resource ran
	Overtakings Metric = "overtakings" // writes that a later one of their resource was done before
	Bytes       Metric = "bytes"       // in Redis, of one write that waits
	Sent        Metric = "commands/s sent"
	Executed    Metric = "commands/s executed"
	StepTime    Metric = "µs"
)

// CallsOf names how often Redis executed one command for a write. It is not
// shown, but kept with the figures: it says where a cost comes from.
func CallsOf(command string) Metric { return Metric("calls of " + command) }

// All are the metrics in the order in which they are shown.
var All = []Metric{
	Rate, Bound, StepTime, RoundTrips, Commands, RedisCPU, ClientCPU, Allocations, Refused, Deferred,
	HandoverP50, HandoverP99, HandoverMax, DoneP50, DoneP99, Bytes, Sent, Executed,
	Done, Unfinished, Failed, Twice, Overlaps, Overtakings,
}

// Figures are what one round gave. A figure that a round says nothing of is
// not there.
type Figures map[Metric]float64

// Spread is a figure over several rounds.
type Spread struct{ Median, Min, Max float64 }

// Summarise returns the spread of every figure that some of the rounds have.
func Summarise(rounds []Figures) map[Metric]Spread {
	values := map[Metric][]float64{}
	for _, r := range rounds {
		for m, v := range r {
			values[m] = append(values[m], v)
		}
	}
	spreads := map[Metric]Spread{}
	for m, v := range values {
		slices.Sort(v)
		spreads[m] = Spread{Median: median(v), Min: v[0], Max: v[len(v)-1]}
	}
	return spreads
}

// median of sorted values.
func median(v []float64) float64 {
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// Figures works out what the records of a round say. began is when the first
// call could come, ended when the round was over at the latest.
func (r Records) Figures(began, ended int64) Figures {
	first := firstRuns(r.Runs)
	f := Figures{Failed: 0, Done: float64(len(first)), Twice: float64(len(r.Runs) - len(first))}
	calls := make(map[int32]Submit, len(r.Submits))
	accepted, deferred := 0.0, 0.0
	for _, s := range r.Submits {
		calls[s.Seq] = s
		switch run, ok := first[s.Seq]; {
		case s.Return == 0:
			f[Failed]++
			continue
		case s.Return > 0 && (!ok || run.End > s.Return):
			deferred++
		}
		accepted++ // what was cut off too: it was begun, and is not done
	}
	f[Unfinished] = max(0, accepted-f[Done])
	if accepted > 0 {
		f[Deferred] = deferred / accepted
	}
	last := began
	if f[Unfinished] > 0 {
		last = ended
	}
	took := make([]int64, 0, len(first))
	for seq, run := range first {
		last = max(last, run.End)
		if s, ok := calls[seq]; ok {
			took = append(took, run.End-s.Call)
		}
	}
	if last > began {
		f[Rate] = f[Done] / time.Duration(last-began).Seconds()
	}
	if len(took) > 0 {
		slices.Sort(took)
		f[DoneP50], f[DoneP99] = quantile(took, 0.5)/1e6, quantile(took, 0.99)/1e6
	}
	maps.Copy(f, lanes(slices.Collect(maps.Values(first)), calls))
	return f
}

// firstRuns returns the first run of each write.
func firstRuns(runs []Run) map[int32]Run {
	first := make(map[int32]Run, len(runs))
	for _, run := range runs {
		if known, ok := first[run.Seq]; !ok || run.Start < known.Start {
			first[run.Seq] = run
		}
	}
	return first
}

// lanes works out what can be said of each resource's writes.
func lanes(runs []Run, calls map[int32]Submit) Figures {
	f := Figures{Overlaps: 0, Overtakings: 0}
	slices.SortFunc(runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Start, b.Start))
	})
	var gaps []int64
	for len(runs) > 0 {
		n := 1
		for n < len(runs) && runs[n].Resource == runs[0].Resource {
			n++
		}
		lane := runs[:n]
		runs = runs[n:]
		gaps = append(gaps, handovers(lane, calls)...)
		f[Overlaps] += float64(overlaps(lane))
		f[Overtakings] += float64(overtaken(lane, calls))
	}
	if len(gaps) > 0 {
		slices.Sort(gaps)
		f[HandoverP50], f[HandoverP99] = quantile(gaps, 0.5)/1e3, quantile(gaps, 0.99)/1e3
		f[HandoverMax] = float64(gaps[len(gaps)-1]) / 1e3
	}
	return f
}

// handovers returns how long the resource lay idle after each of its writes
// although another one had been handed over before that write ended.
func handovers(lane []Run, calls map[int32]Submit) []int64 {
	called := make([]int64, 0, len(lane))
	for _, run := range lane {
		if s, ok := calls[run.Seq]; ok {
			called = append(called, s.Call)
		}
	}
	slices.Sort(called)
	var gaps []int64
	for i, n := 0, 0; i+1 < len(lane); i++ {
		for n < len(called) && called[n] < lane[i].End {
			n++
		}
		if gap := lane[i+1].Start - lane[i].End; n > i+1 && gap >= 0 {
			gaps = append(gaps, gap)
		}
	}
	return gaps
}

// overlaps counts the writes that began before an earlier one had ended.
func overlaps(lane []Run) int {
	n, end := 0, int64(0)
	for _, run := range lane {
		if run.Start < end {
			n++
		}
		end = max(end, run.End)
	}
	return n
}

// overtaken counts the writes that were done after one whose call came only
// when theirs had returned.
func overtaken(lane []Run, calls map[int32]Submit) int {
	n, latest := 0, int64(0) // the latest call among those done already
	for _, run := range lane {
		s, ok := calls[run.Seq]
		if !ok || s.Return <= 0 {
			continue
		}
		if s.Return < latest {
			n++
		}
		latest = max(latest, s.Call)
	}
	return n
}

// quantile of sorted values, in their own unit.
func quantile(sorted []int64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(q*float64(len(sorted)-1)+0.5)])
}

// Busy is the share of the time in which the work of some write was being done:
// for one resource, the share of what is possible.
func (r Records) Busy(began int64) float64 {
	var busy, last int64
	for _, run := range r.Runs {
		busy += run.End - run.Start
		last = max(last, run.End)
	}
	if last <= began {
		return 0
	}
	return float64(busy) / float64(last-began)
}
