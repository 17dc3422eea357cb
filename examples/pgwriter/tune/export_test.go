package tune

import (
	"context"
	"io"
	"time"
)

// Work is what a run does with the writes.
type Work interface{ work }

var (
	Human        = human
	Spread       = spread
	IsThrottled  = isThrottled
	RateFor      = rateFor
	NewStopwatch = newStopwatch
)

// SweepWith is Sweep with work of the test's.
func SweepWith(ctx context.Context, s *Settings, at Place, w Work) (Result, error) {
	return sweepWith(ctx, s, at, w)
}

// Estimate is about how long a sweep takes.
func (s *Settings) Estimate() time.Duration { return s.estimate() }

// Rows writes a table with a row for each point.
func Rows(out io.Writer, s *Settings, title string, full bool, ms ...Measured) {
	t := table{title, full}
	t.begin(out)
	for _, m := range ms {
		t.row(out, s, m, ms[0])
	}
}

// Record is what happens in a run.
type Record struct{ r *record }

// NewRecord returns one with the window from from to to.
func NewRecord(from, to time.Duration) Record { return Record{newRecord(from, to)} }

// Accept notes a write that was accepted.
func (r Record) Accept(w Write, deferred bool) { r.r.accept(w, deferred) }

// Commit notes a transaction.
func (r Record) Commit(at time.Duration, ws ...Write) int { return r.r.commit(ws, at) }

// Figures sums up.
func (r Record) Figures() Figures { return r.r.figures() }

// Writes are the writes of a load at a rate, up to end.
func Writes(l Load, rate float64, end time.Duration, seed uint64) []Write {
	s := newSource(l, rate, end, seed)
	var all []Write
	for w, ok := s.next(); ok; w, ok = s.next() {
		all = append(all, w)
	}
	return all
}
