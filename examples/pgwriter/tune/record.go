package tune

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Figures is what a point did in one run, or the medians of several runs.
type Figures struct {
	Writes       float64 // that took effect, a second
	Transactions float64 // that were committed, a second
	Deferred     float64 // share of the writes

	// These are of the user's rate only: at full load a write mostly waits
	// behind others. Behind says that writes came faster than they were done.
	P50, P99 time.Duration
	Behind   bool
}

// PerTransaction is how many writes a transaction did.
func (f Figures) PerTransaction() float64 {
	if f.Transactions == 0 {
		return 0
	}
	return f.Writes / f.Transactions
}

// record is what happens in a run. Only what happens in its window counts for
// the figures.
type record struct {
	from, to time.Duration // the window, since the run began; to is 0: until all is done

	// mu guards all below.
	mu           sync.Mutex
	accepted     int // in the whole run
	transactions int // in the whole run
	finished     map[int]bool

	called    int // in the window
	deferred  int // of those
	done      int // in the window
	committed int // transactions in the window
	took      []time.Duration
	last      time.Duration // when the last transaction was committed
}

func newRecord(from, to time.Duration) *record {
	return &record{from: from, to: to, finished: map[int]bool{}}
}

func (r *record) within(at time.Duration) bool { return at >= r.from && (r.to == 0 || at < r.to) }

// accept notes that a write was taken care of by Do or Push.
func (r *record) accept(w Write, deferred bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted++
	if r.within(w.Called) {
		r.called++
		if deferred {
			r.deferred++
		}
	}
}

// commit notes a transaction, and returns how many of its writes had not taken
// effect before.
func (r *record) commit(ws []Write, at time.Duration) (fresh int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transactions++
	r.last = max(r.last, at)
	if r.within(at) {
		r.committed++
	}
	for _, w := range ws {
		if r.finished[w.Seq] {
			continue
		}
		r.finished[w.Seq] = true
		fresh++
		if r.within(at) {
			r.done++
		}
		if r.within(w.Called) {
			r.took = append(r.took, at-w.Called)
		}
	}
	return fresh
}

// figures sums up, when all is done.
func (r *record) figures() Figures {
	r.mu.Lock()
	defer r.mu.Unlock()
	var f Figures
	end := r.to
	if end == 0 {
		end = r.last
	}
	if seconds := (end - r.from).Seconds(); seconds > 0 {
		f.Writes, f.Transactions = float64(r.done)/seconds, float64(r.committed)/seconds
	}
	if r.called > 0 {
		f.Deferred = float64(r.deferred) / float64(r.called)
	}
	// A rate is random, and a lookback has writes of before done in the window: a
	// tenth is not yet a jam.
	f.Behind = r.to > 0 && float64(r.done) < 0.9*float64(r.called)
	slices.Sort(r.took)
	f.P50, f.P99 = quantile(r.took, 0.50), quantile(r.took, 0.99)
	return f
}

// quantile is the smallest of sorted that the share q of them does not exceed;
// 0 if there is none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
