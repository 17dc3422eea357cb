package history

import (
	"fmt"
	"slices"
	"time"
)

// write is what all submissions of one write come to.
type write struct {
	payload   string
	called    time.Time // the first call
	returned  time.Time // the first acceptance
	accepted  bool
	refused   bool // by everybody
	unordered bool
}

// Check returns what was broken, in a stable order, and nothing if all is well.
func (h *History) Check() []Violation {
	var found []Violation
	writes, order := h.writes()
	places := map[Ref]bool{}
	for _, refs := range [][]Ref{h.Waiting, h.Dead} {
		for _, r := range refs {
			places[r] = true
		}
	}
	found = append(found, h.checkEffects(writes, places)...)
	for _, r := range order {
		if writes[r].accepted && !places[r] {
			found = append(found, Violation{Lost, r, "it was accepted, has no effect and is not in the queue"})
		}
	}
	byResource, resources := h.effectsByResource()
	for _, r := range resources {
		found = append(found, checkOrder(byResource[r], writes)...)
	}
	return append(found, h.checkCalls()...)
}

// writes merges the submissions of each write, and lists the writes in the order
// of their first submission.
func (h *History) writes() (map[Ref]*write, []Ref) {
	writes := make(map[Ref]*write, len(h.Submissions))
	var order []Ref
	for _, s := range h.Submissions {
		w := writes[s.Ref]
		if w == nil {
			w = &write{payload: s.Payload, called: s.Called, refused: true}
			writes[s.Ref] = w
			order = append(order, s.Ref)
		}
		if s.Called.Before(w.called) {
			w.called = s.Called
		}
		w.unordered = w.unordered || s.Unordered
		w.refused = w.refused && s.Outcome == Refused
		if s.Outcome == Accepted && (!w.accepted || s.Returned.Before(w.returned)) {
			w.accepted, w.returned = true, s.Returned
		}
	}
	return writes, order
}

// checkEffects judges each effect by itself, and marks in places that the write
// is not lost.
func (h *History) checkEffects(writes map[Ref]*write, places map[Ref]bool) (found []Violation) {
	applied := make(map[Ref]bool, len(h.Effects))
	fences := map[string]Effect{} // the greatest so far of each resource
	for _, e := range h.Effects {
		w := writes[e.Ref]
		switch {
		case w == nil:
			found = append(found, Violation{Foreign, e.Ref, "nobody submitted it"})
		case w.payload != e.Payload:
			found = append(found, Violation{Foreign, e.Ref, fmt.Sprintf("submitted was %q, applied %q", w.payload, e.Payload)})
		case w.refused:
			found = append(found, Violation{Ghost, e.Ref, "its submitter was told that nothing had happened"})
		}
		if applied[e.Ref] {
			found = append(found, Violation{Duplicate, e.Ref, "it took effect before"})
		}
		applied[e.Ref], places[e.Ref] = true, true
		if last, any := fences[e.Resource]; any && e.Fence < last.Fence {
			found = append(found, Violation{Stale, e.Ref, fmt.Sprintf("its fence %d comes after %d of %q", e.Fence, last.Fence, last.ID)})
			continue
		}
		fences[e.Resource] = e
	}
	return found
}

func (h *History) effectsByResource() (map[string][]Effect, []string) {
	by := map[string][]Effect{}
	var resources []string
	for _, e := range h.Effects {
		if by[e.Resource] == nil {
			resources = append(resources, e.Resource)
		}
		by[e.Resource] = append(by[e.Resource], e)
	}
	return by, resources
}

// checkOrder judges the order of one resource's effects against that of real
// time. From the last effect to the first it keeps which of those seen was
// accepted first: what was submitted after that should have come later.
func checkOrder(effects []Effect, writes map[Ref]*write) (found []Violation) {
	var first *write
	var firstID string
	for _, e := range slices.Backward(effects) {
		w := writes[e.Ref]
		if w == nil || w.unordered {
			continue
		}
		if first != nil && w.called.After(first.returned) {
			found = append(found, Violation{Overtaken, Ref{e.Resource, firstID}, fmt.Sprintf(
				"it was accepted %v before %q was submitted, and took effect after it", w.called.Sub(first.returned), e.ID)})
		}
		if w.accepted && (first == nil || w.returned.Before(first.returned)) {
			first, firstID = w, e.ID
		}
	}
	return found
}

// checkCalls judges who ran when, and under which fence.
func (h *History) checkCalls() (found []Violation) {
	calls := slices.Clone(h.Calls)
	slices.SortStableFunc(calls, func(a, b Call) int { return a.From.Compare(b.From) })
	last := map[string]Call{}   // the call of each resource that ends last
	fenced := map[string]Call{} // and the one with the greatest fence
	for _, c := range calls {
		if !c.Until.After(c.From) {
			continue
		}
		ref := Ref{Resource: c.Resource}
		if len(c.IDs) > 0 {
			ref.ID = c.IDs[0]
		}
		before, any := last[c.Resource]
		if any && c.From.Before(before.Until) {
			found = append(found, Violation{Overlap, ref, fmt.Sprintf(
				"called by %s, %v before the call of %v by %s ended", c.Holder, before.Until.Sub(c.From), before.IDs, before.Holder)})
		}
		if !any || c.Until.After(before.Until) {
			last[c.Resource] = c
		}
		greatest, any := fenced[c.Resource]
		if any && !h.ClockLost && (c.Fence < greatest.Fence || c.Fence == greatest.Fence && c.Holder != greatest.Holder) {
			found = append(found, Violation{Fence, ref, fmt.Sprintf(
				"called by %s with fence %d after %s with %d", c.Holder, c.Fence, greatest.Holder, greatest.Fence)})
			continue
		}
		fenced[c.Resource] = c
	}
	return found
}
