package linear_test

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"

	deferral "github.com/deferlock/deferlock/defer"
)

// call is what a client asks for.
type call struct {
	op       string // the method's name in lower case; "withdraw" is what follows an unclear admit, enter or acquire
	resource string
	id       string
	turn     int // who asks for the lock, or gives it back; no two turns have the same
	next     int // enter: most writes; settle: most writes to start next
	verdicts []verdict
}

// verdict is a deferral.Verdict.
type verdict struct {
	start
	fate deferral.Fate
}

// start is a delivery.
type start struct {
	id      string
	attempt int
	stamp   int64
}

// answer is what a client was told.
type answer struct {
	// unclear: nothing was told, and it may have happened. The call has no end
	// then, so whether it did is a matter of where in the order it stands: at the
	// end of it nobody is left to see its effect.
	unclear bool

	// again: a reply was lost and the call repeated: what it counts it may have
	// counted later than it did what it does.
	again bool

	// mute: the caller was not told what a method that is made of several scripts
	// has heard.
	mute bool

	won     bool // the lock is the caller's: admit, enter, acquire; settle: it still is
	held    bool // settle: it was until now; free: it was somebody's
	fence   int64
	stamp   int64 // push, admit: the write's, if it is known from its delivery; see stamped
	batch   []start
	count   int // admit: how many are before it; settle: how many wait; lookup: how many are before it
	why     deferral.Why
	place   deferral.Place // lookup: "" for nowhere
	attempt int            // lookup
	refused string         // "dead", "running", "missing"
	entered bool
}

// resource is what is true of one resource. It is never changed, only replaced.
type resource struct {
	holder int   // the turn that has the lock, 0: free
	fence  int64 // the last one that was given
	last   int64 // the last fence or stamp that was given in the very moment in which it took effect
	paused bool
	lane   []write  // oldest first
	dead   []string // sorted
}

// write is one that waits.
type write struct {
	id     string
	starts int
	by     int   // the turn it was last started under, 0 once that start has ended
	stamp  int64 // 0 until it is known: it was never started
}

// model says that a resource behaves as step has it.
func model(step func(r resource, c call, a answer) (resource, bool)) porcupine.Model {
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			var all [][]porcupine.Operation
			index := map[string]int{}
			for _, o := range history {
				name := o.Input.(call).resource
				i, there := index[name]
				if !there {
					i = len(all)
					index[name], all = i, append(all, nil)
				}
				all[i] = append(all[i], o)
			}
			return all
		},
		Init: func() any { return resource{} },
		Step: func(state, input, output any) (bool, any) {
			next, ok := step(state.(resource), input.(call), output.(answer))
			return ok, next
		},
		Equal: func(x, y any) bool {
			a, b := x.(resource), y.(resource)
			return a.holder == b.holder && a.fence == b.fence && a.last == b.last && a.paused == b.paused &&
				slices.Equal(a.lane, b.lane) && slices.Equal(a.dead, b.dead)
		},
		Hash: func(state any) uint64 { return maphash.String(seed, fmt.Sprint(state)) },
	}
}

// find is where in the lane a write is, or -1.
func (r resource) find(id string) int {
	return slices.IndexFunc(r.lane, func(w write) bool { return w.id == id })
}

func (r resource) isDead(id string) bool { return slices.Contains(r.dead, id) }

// without takes the ith write out of the lane.
func (r resource) without(i int) resource {
	r.lane = slices.Delete(slices.Clone(r.lane), i, i+1)
	return r
}

// with puts w in the place of the ith write.
func (r resource) with(i int, w write) resource {
	r.lane = slices.Clone(r.lane)
	r.lane[i] = w
	return r
}

// join puts a write at the end of the lane, if it is nowhere in the queue. Its
// stamp, if it is known, must be a new one.
func (r resource) join(id string, stamp int64) (resource, bool) {
	if r.find(id) >= 0 || r.isDead(id) {
		return r, true
	}
	r.lane = append(slices.Clone(r.lane), write{id: id, stamp: stamp})
	return r.give(stamp)
}

// give gives out a number, 0 for one that is not known. They only rise.
func (r resource) give(number int64) (resource, bool) {
	if number == 0 {
		return r, true
	}
	rises := number > r.last
	r.last = number
	return r, rises
}

// lock gives the lock to a turn under a new fence. What was repeated, and an
// acquire, which is two scripts in one flight, may have got the lock first and
// its fence a little later.
func (r resource) lock(c call, a answer) (resource, bool) {
	r.holder = c.turn
	if a.fence == 0 {
		return r, true
	}
	rises := a.fence > r.fence
	r.fence = a.fence
	if a.again || c.op == "acquire" {
		return r, rises
	}
	r, fits := r.give(a.fence)
	return r, rises && fits
}

// begin starts the oldest writes under a turn: fresh ones together, one that was
// started before alone. It returns them as they would be delivered.
func (r resource) begin(turn, most int, told []start) (resource, []start) {
	var got []start
	r.lane = slices.Clone(r.lane)
	for i := range r.lane[:min(most, len(r.lane))] {
		w := &r.lane[i]
		if w.starts > 0 && i > 0 {
			break
		}
		w.starts, w.by = w.starts+1, turn
		if w.stamp == 0 && i < len(told) {
			w.stamp = told[i].stamp // the first to be told it
		}
		got = append(got, start{w.id, w.starts, w.stamp})
		if w.starts > 1 {
			break
		}
	}
	return r, got
}

// drop takes out a write that took effect; one that came again under its ID is
// another.
func (r resource) drop(s start) resource {
	if i := r.find(s.id); i >= 0 && r.lane[i].stamp == s.stamp {
		return r.without(i)
	}
	return r
}

// judge carries out a verdict that is not Done.
func (r resource) judge(turn int, v verdict) resource {
	mine, i := r.holder == turn, r.find(v.id)
	if v.fate == deferral.Entered {
		if mine && i < 0 && !r.isDead(v.id) {
			r.lane = slices.Insert(slices.Clone(r.lane), 0, write{id: v.id, starts: 1})
		}
		return r
	}
	if i < 0 || r.lane[i].stamp != v.stamp || r.lane[i].starts != v.attempt || r.lane[i].by != turn {
		return r // whoever started it since has the say
	}
	w := r.lane[i]
	w.by = 0
	switch {
	case v.fate == deferral.Return:
		w.starts--
		return r.with(i, w)
	case mine && v.fate == deferral.Failed:
		return r.with(i, w)
	case mine && v.fate == deferral.Buried:
		r = r.without(i)
		r.dead = append(slices.Clone(r.dead), v.id)
		slices.Sort(r.dead)
	}
	return r
}
