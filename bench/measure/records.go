package measure

import (
	"sync/atomic"
	"time"
)

// Submit is one call that handed a write over. Times are Unix nanoseconds, so
// that those of several processes on one machine can be set side by side.
type Submit struct {
	Seq, Resource int32
	Call, Return  int64 // when it should have been called; when it returned, 0 if it failed
}

// CutOff is the Return of a call that had not returned when the round ended.
const CutOff = -1

// Run is one time that the work of a write was done.
type Run struct {
	Seq, Resource int32
	Start, End    int64
}

// Records are what happened in one round, in one process or in several.
type Records struct {
	Submits []Submit
	Runs    []Run
}

// Recorder takes records without a lock and without allocating, so that it
// costs all peers the same and next to nothing. It is safe for concurrent use
// while a round goes on; Records is for when nothing is written any more.
type Recorder struct {
	submits  []Submit
	runs     []Run
	taken    atomic.Int64 // submits given out
	started  atomic.Int64 // runs given out
	finished atomic.Int64 // runs written
}

// NewRecorder returns a Recorder for so many writes that are handed over and so
// many that are done, here or by others for us.
func NewRecorder(submits, runs int) *Recorder {
	return &Recorder{submits: make([]Submit, submits), runs: make([]Run, runs)}
}

// Next gives out the place of the next write, and false when there is none left.
func (r *Recorder) Next() (place int, ok bool) {
	place = int(r.taken.Add(1)) - 1
	return place, place < len(r.submits)
}

// Submitted fills a place that Next gave out.
func (r *Recorder) Submitted(place int, s Submit) { r.submits[place] = s }

// Ran notes that a write was done. What there is no room for is counted only.
func (r *Recorder) Ran(run Run) {
	if i := int(r.started.Add(1)) - 1; i < len(r.runs) {
		r.runs[i] = run
	}
	r.finished.Add(1)
}

// Count says how many runs there have been so far.
func (r *Recorder) Count() int { return int(r.finished.Load()) }

// Records returns what was recorded.
func (r *Recorder) Records() Records {
	return Records{
		Submits: r.submits[:min(int(r.taken.Load()), len(r.submits))],
		Runs:    r.runs[:min(int(r.started.Load()), len(r.runs))],
	}
}

// Add puts the records of another process to these.
func (r *Records) Add(other Records) {
	r.Submits = append(r.Submits, other.Submits...)
	r.Runs = append(r.Runs, other.Runs...)
}

// Now is the clock of records.
func Now() int64 { return time.Now().UnixNano() }
