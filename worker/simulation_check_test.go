package worker_test

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/deferlock/deferlock/internal/history"
)

// left is what is in the queue.
type left struct {
	waiting, halted, dead []history.Ref
	locks                 []string
}

// ownKeys are the queue's. Those in which Run tried its scripts are left behind
// when it dies in the middle of that.
var ownKeys = regexp.MustCompile(`^\{` + simName + `:\d+\}:`)

// leftovers reads the queue past the library.
func (w *world) leftovers() (l left) {
	w.tick()
	mini := w.server.Mini()
	paused := map[string]bool{}
	keys := slices.DeleteFunc(mini.Keys(), func(key string) bool { return !ownKeys.MatchString(key) })
	for _, key := range keys {
		if strings.HasSuffix(key, "}:paused") {
			names, _ := mini.HKeys(key)
			for _, name := range names {
				paused[name] = true
			}
		}
	}
	for _, key := range keys {
		_, topic, _ := strings.Cut(key, "}:")
		lane, isLane := strings.CutPrefix(topic, "lane:")
		switch {
		case isLane:
			ids, _ := mini.ZMembers(key)
			for _, id := range ids {
				ref := refOf(strings.TrimSuffix(lane, "\x00"+id), id)
				if paused[lane] {
					l.halted = append(l.halted, ref)
				} else {
					l.waiting = append(l.waiting, ref)
				}
			}
		case strings.HasPrefix(topic, "lock:"):
			l.locks = append(l.locks, key)
		case topic == "later" || topic == "dead":
			members, _ := mini.ZMembers(key)
			for _, m := range members {
				if topic == "dead" {
					l.dead = append(l.dead, refFromKey(m))
				} else {
					l.waiting = append(l.waiting, refFromKey(m))
				}
			}
		}
	}
	return l
}

// check judges a run that has ended, and returns what is wrong.
func (w *world) check() []string {
	l := w.leftovers()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.records
	h := history.History{Effects: w.db.effects, Waiting: slices.Concat(l.waiting, l.halted), Dead: l.dead, ClockLost: w.clockLost}
	for _, s := range r.submissions {
		s.Unordered = s.Unordered || r.aside[s.Ref]
		h.Submissions = append(h.Submissions, s.Submission)
	}
	for _, c := range r.calls {
		h.Calls = append(h.Calls, c.Call)
	}
	for _, v := range h.Check() {
		r.problem("%v", v)
	}
	kept := map[history.Ref]bool{}
	for _, ref := range slices.Concat(h.Waiting, h.Dead) {
		kept[ref] = true
	}
	for _, s := range r.submissions {
		if s.fresh && !kept[s.Ref] && !r.done[s.Ref].After(s.Called) {
			r.problem("P4: %v was deferred and never ran after that", s.Ref)
		}
	}
	if w.plan.calm {
		w.checkCalm(l)
	}
	return r.problems
}

// rest is a time in which a write must not be called.
type rest struct {
	from, until time.Time
	direct      bool // after a direct call
}

// checkCalm judges a run in which nothing but functions failed: nothing is done
// twice, a rest is a rest, and nothing waits without a reason.
func (w *world) checkCalm(l left) {
	r := &w.records
	bySubmission := map[history.Ref][]*submitted{}
	for _, s := range r.submissions {
		bySubmission[s.Ref] = append(bySubmission[s.Ref], s)
	}
	ran := map[history.Ref]int{}
	ended := map[string]time.Time{} // when the last call for each resource ended
	calls := slices.Clone(r.calls)
	slices.SortStableFunc(calls, func(a, b *call) int { return a.From.Compare(b.From) })
	for _, c := range calls {
		for _, ref := range c.refs {
			ran[ref]++
		}
		first := c.refs[0]
		ready := time.Time{} // from when on nothing but others kept the write back
		for _, s := range bySubmission[first] {
			switch {
			case !s.Returned.After(c.From):
				ready = latest(ready, s.Returned.Add(s.delay))
			case !s.Called.After(c.From):
				ready = latest(ready, s.Called)
			}
		}
		for _, rest := range r.rests[first] {
			// A rest begins a flight before the process says so. After a direct call
			// the write may have been in the lane already, with no rest.
			if (!rest.direct || len(bySubmission[first]) <= 1) && c.From.After(rest.from) && c.From.Before(rest.until.Add(-time.Millisecond)) {
				r.problem("%v was called %v before the end of its rest", first, rest.until.Sub(c.From))
			}
			if !rest.until.After(c.From) {
				ready = latest(ready, rest.until)
			}
		}
		ready = latest(ready.Add(w.plan.cfg.Lookback), ended[c.Resource])
		if late := c.From.Sub(ready); late > promptly && !w.plan.once {
			r.problem("%v was called %v later than it could have been", first, late)
		}
		ended[c.Resource] = latest(ended[c.Resource], c.Until)
	}
	for ref, s := range bySubmission {
		single := s[0].kind == "one" || s[0].kind == "alone"
		if single && w.plan.failures[ref] == 0 && ran[ref] > len(s) {
			r.problem("%v was submitted %d times and called %d times", ref, len(s), ran[ref])
		}
	}
	if len(l.locks) > 0 {
		r.problem("locks are left: %v", l.locks)
	}
}

// promptly is within what a few flights take.
const promptly = 30 * time.Millisecond

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
