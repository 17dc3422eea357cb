package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/deferlock/deferlock/internal/history"
)

// at is n seconds after the beginning.
func at(n int) time.Time { return time.Unix(int64(n), 0) }

func ref(id string) history.Ref { return history.Ref{Resource: "r", ID: id} }

// accepted is a write submitted and accepted between two moments.
func accepted(id string, called, returned int) history.Submission {
	return history.Submission{
		Ref: ref(id), Payload: "of " + id, Called: at(called), Returned: at(returned), Outcome: history.Accepted,
	}
}

func effect(id string, fence int64) history.Effect {
	return history.Effect{Ref: ref(id), Payload: "of " + id, Fence: fence}
}

func call(id, holder string, fence int64, from, until int) history.Call {
	return history.Call{Resource: "r", IDs: []string{id}, Fence: fence, Holder: holder, From: at(from), Until: at(until)}
}

// good is a history without a fault: A, B and C in turn by two holders.
func good() *history.History {
	return &history.History{
		Submissions: []history.Submission{accepted("A", 0, 1), accepted("B", 2, 3), accepted("C", 4, 5)},
		Calls: []history.Call{
			call("A", "one", 10, 1, 3), call("B", "one", 10, 3, 6), call("C", "two", 20, 6, 8),
		},
		Effects: []history.Effect{effect("A", 10), effect("B", 10), effect("C", 20)},
	}
}

func unordered(s history.Submission) history.Submission {
	s.Unordered = true
	return s
}

func with(s history.Submission, o history.Outcome) history.Submission {
	s.Outcome = o
	return s
}

func TestWhatIsAllowedIsNotReported(t *testing.T) {
	for name, change := range map[string]func(*history.History){
		"all in order": func(*history.History) {},
		"waiting":      func(h *history.History) { h.Effects, h.Waiting = h.Effects[:2], []history.Ref{ref("C")} },
		"dead":         func(h *history.History) { h.Effects, h.Dead = h.Effects[:2], []history.Ref{ref("C")} },
		"unknown and applied": func(h *history.History) {
			h.Submissions[1].Outcome = history.Unknown
		},
		"unknown and not applied": func(h *history.History) {
			h.Submissions[2].Outcome, h.Effects = history.Unknown, h.Effects[:2]
		},
		"refused and not applied": func(h *history.History) {
			h.Submissions[2].Outcome, h.Effects = history.Refused, h.Effects[:2]
		},
		"refused once, accepted later": func(h *history.History) {
			h.Submissions = append(h.Submissions, with(accepted("A", 0, 0), history.Refused))
		},
		"submitted at once, applied in another order": func(h *history.History) {
			h.Submissions[1] = accepted("B", 1, 3)
			h.Effects = []history.Effect{effect("B", 10), effect("A", 10), effect("C", 20)}
		},
		"an unknown one is overtaken": func(h *history.History) {
			h.Submissions[0].Outcome = history.Unknown
			h.Effects = []history.Effect{effect("B", 10), effect("A", 10), effect("C", 20)}
		},
		"an unordered one is overtaken": func(h *history.History) {
			h.Submissions[0] = unordered(h.Submissions[0])
			h.Effects = []history.Effect{effect("B", 10), effect("A", 10), effect("C", 20)}
		},
		"an unordered one overtakes": func(h *history.History) {
			h.Submissions[2] = unordered(h.Submissions[2])
			h.Effects = []history.Effect{effect("C", 10), effect("A", 10), effect("B", 20)}
		},
		"submitted again after an unknown outcome, in effect by the first": func(h *history.History) {
			h.Submissions[0].Outcome = history.Unknown
			h.Submissions = append(h.Submissions, accepted("A", 6, 7))
		},
		"late from its start on": func(h *history.History) {
			h.Calls = append(h.Calls, call("A", "late", 1, 7, 7))
		},
		"told of the loss when the next began": func(h *history.History) {
			h.Calls[1].Until = at(4)
			h.Calls[2].From = at(4)
		},
		"fences anew after the clock was lost": func(h *history.History) {
			h.ClockLost, h.Calls[2].Fence = true, 5
		},
		"the same on another resource": func(h *history.History) {
			other := history.Ref{Resource: "s", ID: "A"}
			h.Submissions = append(h.Submissions, history.Submission{Ref: other, Called: at(9), Returned: at(9), Outcome: history.Accepted})
			h.Effects = append([]history.Effect{{Ref: other, Fence: 99}}, h.Effects...)
			h.Calls = append(h.Calls, history.Call{Resource: "s", Holder: "two", Fence: 3, From: at(2), Until: at(7)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			change(h)
			for _, v := range h.Check() {
				t.Errorf("found %v", v)
			}
		})
	}
}

func TestEveryPlantedViolationIsFound(t *testing.T) {
	for _, c := range []struct {
		name string
		kind history.Kind
		of   string
		do   func(*history.History)
	}{
		{"an accepted write is nowhere", history.Lost, "B", func(h *history.History) {
			h.Effects = []history.Effect{h.Effects[0], h.Effects[2]}
		}},
		{"an accepted write is nowhere, its ID on another resource is applied", history.Lost, "B", func(h *history.History) {
			s := h.Submissions[1]
			s.Resource, h.Effects[1].Resource = "s", "s"
			h.Submissions = append(h.Submissions, s)
		}},
		{"refused after it was accepted, and nowhere", history.Lost, "C", func(h *history.History) {
			h.Submissions = append(h.Submissions, with(accepted("C", 6, 7), history.Refused))
			h.Effects = h.Effects[:2]
		}},
		{"applied twice", history.Duplicate, "C", func(h *history.History) {
			h.Effects = append(h.Effects, effect("C", 20))
		}},
		{"applied, and nobody asked for it", history.Foreign, "X", func(h *history.History) {
			h.Effects = append(h.Effects, effect("X", 20))
		}},
		{"applied with another payload", history.Foreign, "B", func(h *history.History) {
			h.Effects[1].Payload = "of C"
		}},
		{"applied although refused", history.Ghost, "B", func(h *history.History) {
			h.Submissions[1].Outcome = history.Refused
		}},
		{"called while the one before ran", history.Overlap, "B", func(h *history.History) {
			h.Calls[0].Until = at(4)
		}},
		{"called while one further back ran", history.Overlap, "C", func(h *history.History) {
			h.Calls[0].Until, h.Calls[1].From, h.Calls[1].Until = at(7), at(1), at(1)
		}},
		{"records of calls in any order", history.Overlap, "C", func(h *history.History) {
			h.Calls[0], h.Calls[2] = h.Calls[2], h.Calls[0]
			h.Calls[1].Until = at(7)
		}},
		{"overtaken by the next", history.Overtaken, "A", func(h *history.History) {
			h.Effects = []history.Effect{effect("B", 10), effect("A", 10), effect("C", 20)}
		}},
		{"overtaken by one of an unknown outcome", history.Overtaken, "A", func(h *history.History) {
			h.Submissions[1].Outcome = history.Unknown
			h.Effects = []history.Effect{effect("B", 10), effect("A", 10), effect("C", 20)}
		}},
		{"overtaken by a later one over one submitted meanwhile", history.Overtaken, "A", func(h *history.History) {
			h.Submissions[1] = accepted("B", 0, 9)
			h.Effects = []history.Effect{effect("C", 10), effect("B", 10), effect("A", 20)}
		}},
		{"a late holder's effect", history.Stale, "B", func(h *history.History) {
			h.Effects[1].Fence = 9
		}},
		{"two late effects are both measured by the greatest", history.Stale, "C", func(h *history.History) {
			h.Effects[0].Fence, h.Effects[1].Fence, h.Effects[2].Fence = 30, 30, 29
		}},
		{"a smaller fence for a later holder", history.Fence, "C", func(h *history.History) {
			h.Calls[2].Fence = 9
		}},
		{"one fence for two holders", history.Fence, "C", func(h *history.History) {
			h.Calls[2].Fence = 10
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good()
			c.do(h)
			found := h.Check()
			if len(found) != 1 || found[0].Kind != c.kind || found[0].ID != c.of {
				t.Errorf("found %v, want one %s of %s", found, c.kind, c.of)
			}
		})
	}
}

func TestAViolationSaysWhatHappened(t *testing.T) {
	h := good()
	h.Effects[1].Fence = 9
	if got, want := fmt.Sprint(h.Check()), `[stale: "B" on "r": its fence 9 comes after 10 of "A"]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A checker whose time grows with the square of the records would take hours.
func TestAHundredThousandRecordsAreJudgedAtOnce(t *testing.T) {
	h := &history.History{}
	const n = 100_000
	for i := range n {
		id := fmt.Sprint(i)
		h.Submissions = append(h.Submissions, accepted(id, i, i))
		h.Calls = append(h.Calls, call(id, "one", int64(i+1), i, i+1))
		h.Effects = append(h.Effects, effect(id, int64(i+1)))
	}
	h.Effects[n/2], h.Effects[n/2+1] = h.Effects[n/2+1], h.Effects[n/2]
	began := time.Now()
	if found := h.Check(); len(found) != 2 { // overtaken, and stale
		t.Errorf("found %d violations: %v", len(found), found)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
