package linear_test

import (
	"slices"

	deferral "github.com/deferlock/deferlock/defer"
)

// step says what a call does to a resource, and whether its caller can have been
// told what he was. It says it of a call that is all alone.
func (r resource) step(c call, a answer) (resource, bool) {
	switch c.op {
	case "acquire":
		return r.acquire(c, a)
	case "release", "withdraw":
		if r.holder == c.turn {
			r.holder = 0
		}
		return r, true
	case "free":
		held := r.holder != 0
		r.holder = 0
		return r, a.unclear || held == a.held
	case "push":
		if r.isDead(c.id) {
			return r, a.unclear || a.refused == "dead"
		}
		next, fits := r.join(c.id, a.stamp)
		return next, fits && a.refused == ""
	case "admit":
		return r.admit(c, a)
	case "enter":
		return r.enter(c, a)
	case "settle":
		return r.settle(c, a)
	case "cancel":
		return r.cancel(c, a)
	case "lookup":
		return r, a.unclear || r.lookup(c, a)
	case "revive":
		i := slices.Index(r.dead, c.id)
		if i >= 0 {
			r.dead = slices.Delete(slices.Clone(r.dead), i, i+1)
			r, _ = r.join(c.id, 0)
		}
		return r, a.unclear || a.refused == "missing" == (i < 0)
	case "pause", "resume":
		r.paused = c.op == "pause"
		return r, true
	}
	return r, false
}

func (r resource) acquire(c call, a answer) (resource, bool) {
	free := r.holder == 0
	if !a.unclear && a.won != free {
		return r, false
	}
	if free {
		return r.lock(c, a)
	}
	return r, true
}

func (r resource) admit(c call, a answer) (resource, bool) {
	i := r.find(c.id)
	open := r.holder == 0 && len(r.lane) == 0 && !r.paused || r.holder == c.turn
	granted := open && i < 0 && !r.isDead(c.id)
	why, ahead := deferral.Behind, len(r.lane)
	switch {
	case i >= 0:
		why, ahead = deferral.Already, i
	case r.paused:
		why = deferral.Paused
	case r.holder != 0:
		why = deferral.Held
	}
	switch {
	case a.unclear && !granted:
		return r.join(c.id, a.stamp)
	case r.isDead(c.id):
		return r, a.refused == "dead"
	case !a.unclear && (a.refused != "" || a.won != granted):
		return r, false
	case granted:
		return r.lock(c, a)
	}
	next, fits := r.join(c.id, a.stamp)
	return next, fits && a.why == why && a.count == ahead
}

func (r resource) enter(c call, a answer) (resource, bool) {
	open := r.holder == 0 && len(r.lane) > 0 && !r.paused
	if !a.unclear && a.won != open {
		return r, false
	}
	if !open {
		return r, true
	}
	r, fits := r.lock(c, a)
	r, got := r.begin(c.turn, c.next, a.batch)
	return r, fits && (a.unclear || slices.Equal(got, a.batch))
}

func (r resource) settle(c call, a answer) (resource, bool) {
	mine := r.holder == c.turn
	for _, v := range c.verdicts {
		if v.fate == deferral.Done {
			r = r.drop(v.start)
		}
	}
	entered := false
	for _, v := range c.verdicts {
		if v.fate != deferral.Done {
			r = r.judge(c.turn, v)
		}
		entered = entered || v.fate == deferral.Entered && (r.find(v.id) >= 0 || r.isDead(v.id))
	}
	if !a.mute && a.held != mine {
		return r, false
	}
	more := mine && c.next > 0 && len(r.lane) > 0 && !r.paused
	if a.won != more {
		return r, false
	}
	if more {
		r, fits := r.lock(c, a)
		r, got := r.begin(c.turn, c.next, a.batch)
		return r, fits && slices.Equal(got, a.batch)
	}
	if mine {
		r.holder = 0
	}
	return r, a.mute || a.again || a.count == len(r.lane) && a.entered == entered
}

func (r resource) cancel(c call, a answer) (resource, bool) {
	i := r.find(c.id)
	refused := ""
	switch {
	case i >= 0 && r.lane[i].by != 0 && r.lane[i].by == r.holder:
		refused = "running"
	case i >= 0:
		r = r.without(i)
	case r.isDead(c.id):
		refused = "dead"
	default:
		refused = "missing"
	}
	return r, a.unclear || a.refused == refused
}

func (r resource) lookup(c call, a answer) bool {
	i := r.find(c.id)
	switch {
	case i >= 0 && r.lane[i].by != 0 && r.lane[i].by == r.holder:
		return a.place == deferral.Running && a.count == i && a.attempt == r.lane[i].starts
	case i >= 0:
		return a.place == deferral.Waiting && a.count == i && a.attempt == r.lane[i].starts
	case r.isDead(c.id):
		return a.place == deferral.Dead
	}
	return a.place == ""
}
