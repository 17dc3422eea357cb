package deferral_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// story is a run of a queue with two lanes, in which every script of the core
// is used, and what has become of the writes so far. It copes with what late
// copies are known to leave behind, a lock that nobody holds above all.
type story struct {
	*bench
	turns     map[string]*deferral.Turn // who holds which lane
	running   map[string]string         // lane → the direct write in it
	accepted  []string
	done      []string
	unordered []string // what has left its place in the order
	starts    map[string]int
}

// steps are the story: a direct write, others behind it, and every fate.
var steps = []struct {
	name string
	do   func(s *story)
}{
	{"admit a", func(s *story) { s.submit("r", "a") }},
	{"admit b", func(s *story) { s.submit("r", "b") }},
	{"push c", func(s *story) { s.accept("r", "c", 0) }},
	{"admit d", func(s *story) { s.submit("r", "d") }},
	{"a is done", func(s *story) { s.end("r", deferral.Done, 1, deferral.Always) }},
	{"b fails", func(s *story) { s.end("r", deferral.Failed, 1, deferral.Always) }},
	{"admit x", func(s *story) { s.submit("s", "x") }},
	{"b is buried", func(s *story) { s.end("r", deferral.Buried, 1, deferral.Always) }},
	{"push y", func(s *story) { s.accept("s", "y", 0) }},
	{"push z for later", func(s *story) { s.accept("s", "z", time.Microsecond) }},
	{"c is returned", func(s *story) { s.end("r", deferral.Return, 0, deferral.Always) }},
	{"look", func(s *story) { s.look() }},
	{"x fails and enters", func(s *story) { s.end("s", deferral.Entered, 1, deferral.IfDue) }},
	{"enter r", func(s *story) { s.begin("r", 2) }},
	{"x is done", func(s *story) { s.end("s", deferral.Done, 1, deferral.Always) }},
	{"push e", func(s *story) { s.accept("r", "e", 0) }},
	{"look", func(s *story) { s.look() }},
	{"c and d are done", func(s *story) { s.end("r", deferral.Done, 1, deferral.IfAlone) }},
	{"push w elsewhere", func(s *story) { s.accept("t", "w", 0) }},
	{"push c again", func(s *story) { s.accept("r", "c", 0) }},
	{"y steps aside", func(s *story) { s.end("s", deferral.Aside, 0, deferral.Always) }},
	{"e is done", func(s *story) { s.end("r", deferral.Done, 5, deferral.Always) }},
	{"admit f", func(s *story) { s.submit("r", "f") }},
	{"look", func(s *story) { s.look() }},
	{"f is done", func(s *story) { s.end("r", deferral.Done, 0, deferral.Always) }},
	{"enter s", func(s *story) { s.begin("s", 5) }},
	{"z and y are done", func(s *story) { s.end("s", deferral.Done, 0, deferral.Always) }},
}

// begin gets a lane's turn, if anything waits there. A lock in the way that
// nobody holds is left to expire first.
func (s *story) begin(lane string, batch int) {
	s.t.Helper()
	if s.turns[lane] != nil || s.depth(lane) == 0 {
		return
	}
	if s.holder(lane) != "" {
		s.del("lock:" + lane)
	}
	s.turns[lane] = s.enter(lane, batch)
	s.started(lane)
}

// started counts what a lane's holder has been given. A late copy of a claim
// counts a start that nobody makes; none may hide one.
func (s *story) started(lane string) {
	s.t.Helper()
	for _, d := range s.turns[lane].Deliveries() {
		s.starts[d.ID]++
		if n := s.starts[d.ID]; d.Attempt < n || d.Attempt > n+1 {
			s.t.Fatalf("start %d of %s is said to be its attempt %d", n, d.ID, d.Attempt)
		}
	}
}

// submit admits a write, and holds its lane if it may run.
func (s *story) submit(lane, id string) {
	s.t.Helper()
	a := s.admit(lane, id)
	s.accepted = append(s.accepted, id)
	if a.Turn != nil {
		if s.turns[lane] != nil {
			s.t.Fatalf("%s may run while another holds %s", id, lane)
		}
		s.turns[lane], s.running[lane] = a.Turn, id
	}
}

func (s *story) accept(lane, id string, delay time.Duration) {
	s.t.Helper()
	w := write(lane, id)
	w.Delay = delay
	if _, err := s.q.Push(s.t.Context(), w); err != nil {
		s.t.Fatal(err)
	}
	s.accepted = append(s.accepted, id)
	if delay != 0 {
		s.unordered = append(s.unordered, id)
	}
}

// end settles what is running in a lane.
func (s *story) end(lane string, fate deferral.Fate, next int, goOn deferral.GoOn) {
	s.t.Helper()
	s.begin(lane, 1)
	turn := s.turns[lane]
	if turn == nil {
		return
	}
	vs := verdict(turn, fate, 0)
	if id := s.running[lane]; id != "" && fate == deferral.Entered {
		vs = append(vs, deferral.Verdict{Delivery: turn.Direct(write(lane, id)), Fate: fate})
	} else if id != "" {
		s.done = append(s.done, id)
	} else if fate == deferral.Entered { // it waits already: its admission has come again
		vs = verdict(turn, deferral.Failed, 0)
	}
	delete(s.running, lane)
	for _, v := range vs {
		switch v.Fate {
		case deferral.Done:
			s.done = append(s.done, v.Delivery.ID)
			delete(s.starts, v.Delivery.ID)
		case deferral.Return:
			s.starts[v.Delivery.ID]--
		case deferral.Aside, deferral.Buried:
			s.unordered = append(s.unordered, v.Delivery.ID)
		}
	}
	got, err := turn.Settle(s.t.Context(), deferral.Settlement{Verdicts: vs, Next: next, GoOn: goOn})
	if err != nil || !got.Held {
		s.t.Fatalf("%s in %s: %+v, %v", fate, lane, got, err)
	}
	if !got.More {
		delete(s.turns, lane)
		return
	}
	s.started(lane)
}

// look moves what is for later into its lane.
func (s *story) look() {
	s.t.Helper()
	if _, err := s.q.Due(s.t.Context(), 0, 10, 0, time.Minute); err != nil {
		s.t.Fatal(err)
	}
}

// check says that nobody has lost his lock.
func (s *story) check(after string) {
	s.t.Helper()
	for lane, turn := range s.turns {
		if got := s.holder(lane); got != turn.Lease().Token() {
			s.t.Fatalf("%s: %s is held by %q, and its holder is at work", after, lane, got)
		}
	}
}

// finish runs what is left and judges the whole.
func (s *story) finish(what string) {
	s.t.Helper()
	for range 3 {
		s.look()
		for _, lane := range []string{"r", "s", "t"} {
			for s.turns[lane] != nil || s.depth(lane) > 0 {
				s.end(lane, deferral.Done, 5, deferral.Always)
			}
			s.del("lock:" + lane) // expired, if a late copy has left one
		}
	}
	dead, err := s.rdb.HKeys(s.t.Context(), s.key("graves")).Result()
	if err != nil {
		s.t.Fatal(err)
	}
	var ordered []string
	for _, id := range s.accepted {
		isDead := slices.ContainsFunc(dead, func(ref string) bool { return strings.HasSuffix(ref, "\x00"+id) })
		if count(s.done, id) < count(s.accepted, id) && !isDead {
			s.t.Errorf("%s: %s was accepted and is lost; done %q", what, id, s.done)
		}
		if !slices.Contains(s.unordered, id) {
			ordered = append(ordered, id)
		}
	}
	for _, lane := range []string{"abcdef", "xyz"} {
		if got, want := firsts(s.done, ordered, lane), firsts(ordered, ordered, lane); got != want {
			s.t.Errorf("%s: took effect in the order %q, accepted in the order %q", what, got, want)
		}
	}
	if problems, err := redistest.Problems(s.t.Context(), s.rdb, s.cfg.Name); err != nil || len(problems) > 0 {
		s.t.Errorf("%s: %v, %q", what, err, problems)
	}
}

func count(ids []string, id string) int {
	return len(ids) - len(slices.DeleteFunc(slices.Clone(ids), func(other string) bool { return other == id }))
}

// firsts is the order in which those of a lane that have an order came first.
func firsts(ids, ordered []string, lane string) string {
	out := ""
	for _, id := range ids {
		if strings.Contains(lane, id) && slices.Contains(ordered, id) && !strings.Contains(out, id) {
			out += id
		}
	}
	return out
}

// tell runs the story. After step moment a copy of request number copied arrives
// again, if that is not negative. It returns how many requests there were.
func tell(t *testing.T, b *bench, p *redistest.Proxy, copied, moment int) (perStep []int) {
	t.Helper()
	if err := b.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	b.q = b.another(b.rdb)
	s := &story{bench: b, turns: map[string]*deferral.Turn{}, running: map[string]string{}, starts: map[string]int{}}
	defer func() {
		for turn := range maps.Values(s.turns) {
			turn.Lease().End()
		}
	}()
	what := "without a late copy"
	for i, step := range steps {
		step.do(s)
		s.check("after " + step.name)
		perStep = append(perStep, len(p.Captured()))
		if i != moment || copied < 0 {
			continue
		}
		raw := p.Captured()[copied]
		what = fmt.Sprintf("a copy of request %d, of %q, after %q", copied, steps[at(perStep, copied)].name, step.name)
		if reply := p.Replay(t, raw); strings.HasPrefix(reply, "-") {
			t.Errorf("%s: %s", what, reply)
		}
		s.check(what)
	}
	s.finish(what)
	if t.Failed() {
		t.FailNow()
	}
	return perStep
}

// at is the step in which a request was sent.
func at(perStep []int, request int) int {
	return slices.IndexFunc(perStep, func(n int) bool { return n > request })
}

// A network can deliver a copy of a request long after its reply has been read:
// the client had given up on a connection and sent it again on another. A copy
// of a leave that had handed the lane over deleted the lock under the holder,
// when another lane was due by then, or the lane had been paused.
func TestLateCopyOfAnyRequestAtAnyMomentDoesNoHarm(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		p.Record("evalsha")
		b := newBench(t, s, deferral.Config{})
		b.rdb = p.Client(t)
		tell(t, b, p, -1, 0) // the scripts are known from here on
		perStep := tell(t, b, p, -1, 0)
		if n := perStep[len(steps)-1]; n < len(steps) {
			t.Fatalf("%d requests in %d steps", n, len(steps))
		}
		stride := 1
		if !s.IsReal() {
			stride = 5 // a fifth of them, for it is slow
		}
		for moment := range steps {
			for copied := moment % stride; copied < perStep[moment]; copied += stride {
				tell(t, b, p, copied, moment)
			}
		}
	})
}

// As told above, with a pause. Nor may the copy start what its holder does not
// know of: that start would count, and nobody make it.
func TestLateCopyOfALeaveWhileTheLaneIsPausedDoesNotDeleteTheLock(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		b.q = b.another(p.Client(t))
		b.push("r", "a", "b")
		turn := b.enter("r", 1)
		b.settle(b.granted("s", "x"), 0)
		p.Record(b.key("lane:r"))
		if got := b.settle(turn, 2, verdict(turn, deferral.Done, 0)...); got != "b:1" {
			t.Fatalf("handed over %q", got)
		}
		copies := p.Captured()
		b.push("r", "c")
		if err := b.q.Pause(t.Context(), "r", "maintenance"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if reply := p.Replay(t, copies[0]); !strings.HasPrefix(reply, "*5") {
				t.Errorf("the copy's answer is %q", reply)
			}
			if got := b.holder("r"); got != turn.Lease().Token() {
				t.Fatalf("the lock is held by %q, and its holder is at work", got)
			}
		}
		if got := b.settle(turn, 2, verdict(turn, deferral.Done, 0)...); got != "" {
			t.Errorf("started %q in a paused lane", got)
		}
		if err := b.q.Resume(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		turn = b.enter("r", 2)
		b.wantStarted(turn, "c:1")
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
	})
}

// A direct write failed, entered its lane, was tried again at once under the
// same lock and took effect, and the next one was running: a copy of the leave
// put the first one into the lane again, before the one that ran.
func TestLateCopyOfALeaveDoesNotPutAWriteBeforeTheRunningOne(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		b.q = b.another(p.Client(t))
		b.settle(b.granted("s", "x"), 0)
		turn := b.granted("r", "a")
		b.push("r", "b")
		p.Record(b.key("lane:r"))
		v := deferral.Verdict{Delivery: turn.Direct(write("r", "a")), Fate: deferral.Entered}
		if got := b.settle(turn, 1, v); got != "a:2" {
			t.Fatalf("started %q", got)
		}
		copies := p.Captured()
		if got := b.settle(turn, 1, verdict(turn, deferral.Done, 0)...); got != "b:1" {
			t.Fatalf("started %q", got)
		}
		p.Replay(t, copies[len(copies)-1])
		if got := b.lane("r"); got != "b" {
			t.Errorf("the lane has %q", got)
		}
		if got := b.holder("r"); got != turn.Lease().Token() {
			t.Errorf("the lock is held by %q, and its holder is at work", got)
		}
		b.settle(turn, 1, verdict(turn, deferral.Done, 0)...)
	})
}
