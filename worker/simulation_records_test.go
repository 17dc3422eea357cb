package worker_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/history"
	"github.com/deferlock/deferlock/lock"
	"github.com/deferlock/deferlock/worker"
)

// records is what a simulation notes for the checks at its end. All of it is
// guarded by world.mu.
type records struct {
	submissions []*submitted
	calls       []*call
	nth         map[history.Ref]int       // calls so far
	done        map[history.Ref]time.Time // when a call last ended well
	aside       map[history.Ref]bool      // stepped aside
	rests       map[history.Ref][]rest
	breaks      []lockBreak
	given       map[int64]time.Time // when Redis first said a number that may be a fence
	problems    []string
	seen        map[string]int // how often what happened
}

func newRecords() records {
	return records{
		nth: map[history.Ref]int{}, done: map[history.Ref]time.Time{}, aside: map[history.Ref]bool{},
		rests: map[history.Ref][]rest{}, given: map[int64]time.Time{}, seen: map[string]int{},
	}
}

// problem notes what is wrong besides what the history shows.
func (r *records) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records.problem(format, args...)
}

// submitted is one call of Do or Push.
type submitted struct {
	history.Submission
	process *process
	submission
	faults int  // of the process when it was called
	fresh  bool // it was not in the queue before
}

// submitted notes that a write is about to be submitted.
func (w *world) submitted(p *process, s submission) *submitted {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &submitted{process: p, submission: s, faults: p.faults}
	r.Submission = history.Submission{
		Ref: s.ref(), Payload: payloadOf(s.N), Called: time.Now(), Unordered: s.delay > 0,
	}
	w.records.submissions = append(w.records.submissions, r)
	w.sayLocked("%s submits %v as %q, push=%v delay=%v", p.name, s.item, s.kind, s.push, s.delay)
	return r
}

// answered notes what the submitter was told. It reports whether it should ask
// again.
func (w *world) answered(r *submitted, out worker.Outcome, err error) (again bool) {
	applied := w.db.has(r.Ref)
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.process.dead {
		return false
	}
	r.Returned = time.Now()
	took := r.Returned.Sub(r.Called)
	w.sayLocked("%s is told of %v after %v: %+v, %s", r.process.name, r.Ref, took, out, nameOf(err))
	switch {
	case err == nil:
		r.Outcome = history.Accepted
	case errors.Is(err, worker.ErrNotAccepted):
		r.Outcome = history.Refused
		if r.faults == r.process.faults && r.patience == 0 && !errors.Is(err, deferral.ErrDead) {
			w.records.problem("%v was refused without a reason: %v", r.Ref, err)
		}
	}
	w.answeredHonestly(r, out, err, applied)
	r.fresh = out.Deferred && out.Why != deferral.Already
	// A write that ran took its time; one that did not may not wait for a lock.
	if ran := out.Ran || out.Why == deferral.AtHead; err == nil && !ran {
		limit := 25 * time.Millisecond
		if r.faults != r.process.faults {
			limit = 4*(w.plan.readTimeout+time.Second) + 5*time.Second
		}
		if took > limit {
			w.records.problem("P1: submitting %v took %v", r.Ref, took)
		}
	}
	return errors.Is(err, worker.ErrUnknown)
}

// answeredHonestly judges an outcome by itself.
func (w *world) answeredHonestly(r *submitted, out worker.Outcome, err error, applied bool) {
	switch {
	case r.push:
	case err == nil && out.Ran == out.Deferred:
		w.records.problem("Do of %v took care of it and says %+v", r.Ref, out)
	case out.Ran && !applied:
		w.records.problem("Do of %v says that it ran, and it did not", r.Ref)
	case err != nil && out.Ran:
		w.records.problem("Do of %v says that it ran: %v", r.Ref, err)
	}
}

// call is one call of a function.
type call struct {
	history.Call
	world   *world
	process *process
	refs    []history.Ref
	nth     int // call for the first of its writes
	direct  bool
	ended   bool
	unhook  func() bool
}

// called notes that a function has begun.
func (w *world) called(p *process, ctx context.Context, its []item) *call {
	in, ok := worker.FromContext(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy++ // a function may outlive its Run
	c := &call{world: w, process: p}
	c.Call = history.Call{Resource: its[0].Resource, Fence: in.Fence, Holder: p.name, From: time.Now()}
	for _, it := range its {
		c.refs = append(c.refs, it.ref())
		c.IDs = append(c.IDs, it.ID)
	}
	if !ok || in.ID != its[0].ID && !in.Coalesced {
		w.records.problem("%s: the function for %v is told of %+v", p.name, c.refs, in)
	}
	if p.dead {
		return c // it begins nothing any more
	}
	c.nth = w.records.nth[c.refs[0]]
	for _, ref := range c.refs {
		w.records.nth[ref]++
	}
	c.direct = in.DeferredFor == 0 && in.Attempt == 1
	for _, b := range w.records.breaks {
		if b.of(c) {
			c.lostLocked()
		}
	}
	w.records.calls = append(w.records.calls, c)
	w.sayLocked("%s begins %v, call %d, attempt %d, fence %d", p.name, c.refs, c.nth, in.Attempt, in.Fence)
	if ctx.Err() != nil {
		c.lostLocked()
		return c
	}
	c.unhook = context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		c.lostLocked()
	})
	return c
}

// lostLocked notes that the function could know that the lock is lost, or that
// nobody could. world.mu is held.
func (c *call) lostLocked() {
	if !c.ended && c.Until.IsZero() && !c.process.dead {
		c.Until = time.Now()
	}
}

// returned notes that a function has ended, and that the first done of its
// writes are done.
func (w *world) returned(c *call, done int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	if c.unhook != nil {
		c.unhook()
	}
	c.ended = true
	if c.Until.IsZero() {
		c.Until = time.Now()
	}
	if c.process.dead {
		return
	}
	w.sayLocked("%s ends %v, %d done", c.process.name, c.refs, done)
	for _, ref := range c.refs[:done] {
		w.records.done[ref] = time.Now()
	}
}

// lockBreak is a moment at which locks ended although their holders could not
// know.
type lockBreak struct {
	resource string // "": all
	at       time.Time
}

// of tells whether c ran under a lock that the break has ended: one whose fence
// had been given by then.
func (b lockBreak) of(c *call) bool {
	given, ok := c.world.records.given[c.Fence]
	return (b.resource == "" || b.resource == c.Resource) && ok && !given.After(b.at)
}

// breakLocks notes that the locks of a resource, or of all, may have ended now.
func (w *world) breakLocks(resource string) {
	b := lockBreak{resource, time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records.breaks = append(w.records.breaks, b)
	for _, c := range w.records.calls {
		if b.of(c) {
			c.lostLocked()
		}
	}
}

// numbers are stamps, fences and times of Redis.
var numbers = regexp.MustCompile(`\d{15}`)

// givenLocked notes the fences that a reply may give.
func (r *records) givenLocked(reply []byte) {
	for _, text := range numbers.FindAll(reply, -1) {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if _, known := r.given[n]; err == nil && !known {
			r.given[n] = time.Now()
		}
	}
}

// nameOf is what an error comes to. Its text may say which of two limits that
// ended at the same instant was noticed first.
func nameOf(err error) string {
	for _, known := range []error{worker.ErrNotAccepted, worker.ErrUnknown, worker.ErrStopping, lock.ErrLost, errStale, errDrawn, errDied} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil {
		return "an error"
	}
	return "no error"
}
