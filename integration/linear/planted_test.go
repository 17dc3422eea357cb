package linear_test

import (
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"

	deferral "github.com/deferlock/deferlock/defer"
)

// What the checks find nothing of is worth something only if they would find it:
// each of these falsifies what one client was told in a history that is in order.
var planted = []struct {
	name    string
	falsify func(h []porcupine.Operation) []porcupine.Operation // nil: there was nothing to falsify
}{
	{"a write is delivered that nobody pushed", func(h []porcupine.Operation) []porcupine.Operation {
		pushes := map[string][]int{}
		for i, o := range h {
			in, out := o.Input.(call), o.Output.(answer)
			if (in.op == "push" || in.op == "admit") && !out.won && out.refused == "" {
				pushes[in.resource+in.id] = append(pushes[in.resource+in.id], i)
			}
			for _, s := range out.batch {
				if by := pushes[in.resource+s.id]; len(by) == 1 && s.attempt == 1 {
					return slices.Delete(h, by[0], by[0]+1)
				}
			}
		}
		return nil
	}},
	{"a write overtakes", func(h []porcupine.Operation) []porcupine.Operation {
		return change(h, func(_ call, out *answer) bool {
			if len(out.batch) < 2 {
				return false
			}
			out.batch = []start{out.batch[1], out.batch[0]}
			return true
		})
	}},
	{"a write is delivered that took effect before", func(h []porcupine.Operation) []porcupine.Operation {
		done := map[string]start{}
		return change(h, func(in call, out *answer) bool {
			for _, v := range in.verdicts {
				if v.fate == deferral.Done {
					done[in.resource] = v.start
				}
			}
			before, there := done[in.resource]
			if !there || in.op != "enter" || !out.won {
				return false
			}
			out.batch = []start{before}
			return true
		})
	}},
	{"a write is lost", func(h []porcupine.Operation) []porcupine.Operation {
		return change(h, func(_ call, out *answer) bool {
			if len(out.batch) < 3 {
				return false
			}
			out.batch = out.batch[:len(out.batch)-1]
			return true
		})
	}},
	{"two hold a lock", func(h []porcupine.Operation) []porcupine.Operation {
		greatest := int64(0)
		for _, o := range h {
			greatest = max(greatest, o.Output.(answer).fence)
		}
		return change(h, func(in call, out *answer) bool {
			if in.op != "admit" || out.why != deferral.Held {
				return false
			}
			*out = answer{won: true, fence: greatest}
			return true
		})
	}},
	{"a fence goes back", func(h []porcupine.Operation) []porcupine.Operation {
		grants := map[string]int{}
		return change(h, func(in call, out *answer) bool {
			if out.won {
				grants[in.resource]++
			}
			if grants[in.resource] <= clients { // one of these at least was over before
				return false
			}
			out.fence = 1
			return true
		})
	}},
	{"a lane is empty that is not", func(h []porcupine.Operation) []porcupine.Operation {
		return change(h, func(in call, out *answer) bool {
			if in.op != "enter" || !out.won {
				return false
			}
			*out = answer{}
			return true
		})
	}},
	{"a write runs that nobody has started", func(h []porcupine.Operation) []porcupine.Operation {
		return change(h, func(_ call, out *answer) bool {
			if out.place != deferral.Waiting || out.attempt > 0 {
				return false
			}
			out.place = deferral.Running
			return true
		})
	}},
}

// change lets f change the first answer it can.
func change(h []porcupine.Operation, f func(in call, out *answer) bool) []porcupine.Operation {
	for i, o := range h {
		out := o.Output.(answer)
		if f(o.Input.(call), &out) {
			h[i].Output = out
			return h
		}
	}
	return nil
}

func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	h := history(t, slices.Concat(lanes, harm), false, 4000)
	slices.SortFunc(h, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	if verdict := judge(h, resource.step); verdict != porcupine.Ok {
		t.Fatalf("what is to be falsified is %v", verdict)
	}
	for _, p := range planted {
		falsified := p.falsify(slices.Clone(h))
		if falsified == nil {
			t.Errorf("%s: there was nothing to falsify", p.name)
			continue
		}
		if verdict := judge(falsified, resource.step); verdict != porcupine.Illegal {
			t.Errorf("%s: %v", p.name, verdict)
		}
	}
	youngest := func(r resource, c call, a answer) (resource, bool) {
		next, ok := r.step(c, a)
		if len(next.lane) == len(r.lane)+1 {
			next.lane = slices.Concat(next.lane[len(r.lane):], r.lane) // the youngest first
		}
		return next, ok
	}
	if verdict := judge(h, youngest); verdict != porcupine.Illegal {
		t.Errorf("held against a lane that delivers the youngest first: %v", verdict)
	}
}

func TestACallOfUnclearOutcomeMayHaveHappenedOrNot(t *testing.T) {
	unclear := answer{unclear: true}
	push := call{op: "push", resource: "r", id: "a"}
	enter := call{op: "enter", resource: "r", turn: 1, next: 1}
	got := answer{won: true, fence: 1, batch: []start{{"a", 1, 1}}}
	acquire := func(turn int) call { return call{op: "acquire", resource: "r", turn: turn} }
	withdraw := call{op: "withdraw", resource: "r", turn: 1}
	for _, test := range []struct {
		name  string
		want  porcupine.CheckResult
		calls []any // what was asked and told in turn, one after the other
	}{
		{"it was stored", porcupine.Ok, []any{push, unclear, enter, got}},
		{"it was not stored", porcupine.Ok, []any{push, unclear, enter, answer{}}},
		{"it was stored late", porcupine.Ok, []any{push, unclear, enter, answer{}, enter, got}},
		{"nobody stored it", porcupine.Illegal, []any{enter, got}},
		{"what is clear was stored", porcupine.Illegal, []any{push, answer{}, enter, answer{}}},
		{"the lock was got", porcupine.Ok, []any{acquire(1), unclear, withdraw, unclear, acquire(2), answer{}}},
		{"and given back", porcupine.Ok, []any{acquire(1), unclear, withdraw, unclear, acquire(2), answer{}, acquire(3), answer{won: true, fence: 2}}},
		{"it was not got", porcupine.Ok, []any{acquire(1), unclear, withdraw, unclear, acquire(2), answer{won: true, fence: 2}}},
		{"nobody had it", porcupine.Illegal, []any{acquire(2), answer{}}},
		{"what is clear was got", porcupine.Illegal, []any{acquire(1), answer{won: true, fence: 1}, acquire(2), answer{won: true, fence: 2}}},
	} {
		var h []porcupine.Operation
		for i := 0; i < len(test.calls); i += 2 {
			o := porcupine.Operation{Input: test.calls[i], Output: test.calls[i+1], Call: int64(i), Return: int64(i + 1)}
			if o.Output.(answer).unclear {
				o.Return = never
			}
			h = append(h, o)
		}
		if verdict := judge(h, resource.step); verdict != test.want {
			t.Errorf("%s: %v, want %v", test.name, verdict, test.want)
		}
	}
}
