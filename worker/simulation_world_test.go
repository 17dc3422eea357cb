package worker_test

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deferlock/deferlock/internal/redistest"
)

// A simulation repeats itself exactly although goroutines are scheduled as they
// happen to be, because no two things that matter happen at the same instant:
// every flight on the network and every stay in a function takes a drawn number
// of nanoseconds. Whatever does run at the same instant runs until all of it is
// blocked, and only then is what came of it looked at, in an order of its
// content. So a draw is made either by the one goroutine that drives the world,
// or from a generator that belongs to a single call.

// world is one simulated run: its clock, its Redis, its network, its processes
// and its database.
type world struct {
	t      testing.TB
	plan   *plan
	rng    *rand.Rand // the driver's own
	began  time.Time
	server *redistest.Server
	events events
	poke   chan struct{} // has a token when something has arrived since it was read

	offset     time.Duration // of Redis's clock
	troubled   bool          // faults of the network may be drawn
	over       bool          // nothing is to be started any more
	clockLost  bool          // fences may have begun anew
	db         *database
	all        []*process // dead ones too
	links      sync.WaitGroup
	drawnAt    time.Time
	drawnFor   map[string]luck // flights of the instant drawnAt
	drawnApart map[string]int  // see flight.apart

	// mu guards what follows, what processes say of themselves, and what links
	// have read.
	mu      sync.Mutex
	arrived map[*link]bool
	trace   []line
	busy    int // calls of Do, Push and Run under way
	records records
}

// line is one event of the trace.
type line struct {
	at   time.Duration
	text string
}

func newWorld(t testing.TB, p *plan) *world {
	w := &world{
		t: t, plan: p, rng: rand.New(rand.NewPCG(p.seed, 1)), began: time.Now(),
		server: redistest.MiniInBubble(t), poke: make(chan struct{}, 1), arrived: map[*link]bool{}, drawnFor: map[string]luck{}, drawnApart: map[string]int{},
		troubled: !p.calm,
	}
	w.db = newDatabase()
	w.records = newRecords()
	return w
}

// say adds a line to the trace.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sayLocked(format, args...)
}

func (w *world) sayLocked(format string, args ...any) {
	w.trace = append(w.trace, line{time.Since(w.began), fmt.Sprintf(format, args...)})
}

// saw counts something that simulations are to come upon.
func (w *world) saw(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records.seen[what]++
}

// traceText is the trace in an order that does not depend on who of those that
// ran at the same instant was first.
func (w *world) traceText() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.trace, func(a, b line) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return strings.Compare(a.text, b.text)
	})
	var b strings.Builder
	for _, l := range w.trace {
		fmt.Fprintf(&b, "%-14s %s\n", l.at, l.text)
	}
	return b.String()
}

// drawn is a generator for one thing that has a name.
func (w *world) drawn(name string, n int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", name, n)
	return rand.New(rand.NewPCG(w.plan.seed, h.Sum64()))
}

// event is something the driver does at a moment.
type event struct {
	at time.Time
	n  int
	do func()
}

// events is a heap; of those at the same moment the first that was added.
type events struct {
	list []event
	n    int
}

func (e *events) Len() int      { return len(e.list) }
func (e *events) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *events) Push(x any)    { e.list = append(e.list, x.(event)) }

func (e *events) Less(i, j int) bool {
	if !e.list[i].at.Equal(e.list[j].at) {
		return e.list[i].at.Before(e.list[j].at)
	}
	return e.list[i].n < e.list[j].n
}

func (e *events) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return last
}

// at has the driver do something at a moment. Only the driver may call it.
func (w *world) at(moment time.Time, do func()) {
	w.events.n++
	heap.Push(&w.events, event{moment, w.events.n, do})
}

// run drives the world until done, or for at most limit. It reports whether done
// became true.
func (w *world) run(limit time.Duration, done func() bool) bool {
	deadline := time.Now().Add(limit)
	for {
		synctest.Wait()
		w.collect()
		if done() {
			return true
		}
		now := time.Now()
		if !now.Before(deadline) {
			return false
		}
		next := deadline
		if w.events.Len() > 0 && w.events.list[0].at.Before(next) {
			next = w.events.list[0].at
		}
		if next.Equal(deadline) || now.Before(next) {
			w.sleep(next.Sub(now))
			continue
		}
		heap.Pop(&w.events).(event).do()
	}
}

// sleep waits for d, or until something arrives.
func (w *world) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.poke:
	}
}

// tick sets Redis's clock. It comes before everything that Redis does.
func (w *world) tick() { w.server.Mini().SetTime(time.Now().Add(w.offset)) }

// working counts a goroutine that has to end before the world does.
func (w *world) working(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy += n
}

// idle says that nobody is at work.
func (w *world) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy == 0
}
