package deferral_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// model is what one lane should look like, and how far its numbers have risen.
type model struct {
	*bench
	rt *rapid.T

	time time.Time // Redis's clock

	lane   []string // what waits, in the order in which it must take effect
	aside  []string
	pushed int
	turn   *deferral.Turn
	direct string // the write that was granted the turn, or ""
	fence  int64  // the greatest so far
	stamp  int64  // that of what took effect last
}

// Whatever happens on a resource, the order in which its writes take effect is
// that in which they were accepted, and their stamps and fences only rise: under
// failures, crashes, a clock that jumps to and fro, and the loss of what Redis
// remembers of the time.
func TestStampsAndFencesOnlyRise(t *testing.T) {
	s := redistest.Mini(t)
	b := newBench(t, s, deferral.Config{})
	rapid.Check(t, func(rt *rapid.T) {
		if err := b.rdb.FlushAll(t.Context()).Err(); err != nil {
			rt.Fatal(err)
		}
		b.q = b.another(b.rdb)
		start := time.Unix(1_760_000_000, 0)
		m := &model{bench: b, rt: rt, time: start}
		s.Mini().SetTime(start)
		defer m.crash()
		rt.Repeat(map[string]func(*rapid.T){
			"push":   func(*rapid.T) { m.push() },
			"admit":  func(*rapid.T) { m.admit() },
			"enter":  func(*rapid.T) { m.enter() },
			"settle": func(*rapid.T) { m.settle() },
			"look":   func(*rapid.T) { m.look() },
			"crash":  func(*rapid.T) { m.crash() },
			"jump": func(rt *rapid.T) {
				m.setTime(m.time.Add(time.Duration(rapid.IntRange(-1000, 1000).Draw(rt, "seconds")) * time.Second))
			},
			"forget": func(*rapid.T) { m.forget() },
		})
		problems, err := redistest.Problems(t.Context(), b.rdb, "n")
		if err != nil || len(problems) > 0 {
			rt.Fatalf("%v, %q", err, problems)
		}
	})
}

// ctx ends with the test, not with one run of the property.
func (m *model) ctx() context.Context { return m.t.Context() }

// setTime sets Redis's clock. Forwards, that may end the lock.
func (m *model) setTime(to time.Time) {
	m.time = to
	m.s.Mini().SetTime(to)
	if m.turn != nil && m.holder("r") == "" {
		m.crash()
	}
}

// forget loses the clock key, when Redis's clock is past the last stamp, as it
// is unless it has been set back, and goes on until the next one is given.
func (m *model) forget() {
	last, _, _ := strings.Cut(m.rdb.Get(m.ctx(), m.key("clock")).Val(), " ")
	if us, err := strconv.ParseInt(last, 10, 64); err == nil && !time.UnixMicro(us).Before(m.time) {
		m.setTime(time.UnixMicro(us).Add(time.Second))
	}
	m.del("clock")
	m.push()
}

func (m *model) newID() string {
	m.pushed++
	return "w" + strings.Repeat("z", m.pushed%3) + time.Duration(m.pushed).String()
}

func (m *model) push() {
	id := m.newID()
	if _, err := m.q.Push(m.ctx(), write("r", id)); err != nil {
		m.rt.Fatal(err)
	}
	m.lane = append(m.lane, id)
}

func (m *model) admit() {
	id := m.newID()
	a, err := m.q.Admit(m.ctx(), write("r", id))
	if err != nil {
		m.rt.Fatal(err)
	}
	if a.Turn == nil {
		m.lane = append(m.lane, id)
		return
	}
	if m.turn != nil || len(m.lane) > 0 {
		m.rt.Fatalf("%s may run, and before it are %q", id, m.lane)
	}
	m.turn, m.direct = a.Turn, id
	m.rises("granted")
}

func (m *model) enter() {
	turn, err := m.q.Enter(m.ctx(), "r", rapid.IntRange(1, 3).Draw(m.rt, "batch"), 0)
	if err != nil || (turn != nil) != (m.turn == nil && len(m.lane) > 0) {
		m.rt.Fatalf("entered %v, %v; waiting %q", turn, err, m.lane)
	}
	if turn != nil {
		m.turn = turn
		m.rises("claimed")
	}
}

// rises says that the turn's fence is greater than all before, and that it has
// the first writes of the lane.
func (m *model) rises(what string) {
	fence := m.turn.Lease().Fence()
	if fence <= m.fence {
		m.rt.Fatalf("%s: fence %d after %d", what, fence, m.fence)
	}
	m.fence = fence
	for i, d := range m.turn.Deliveries() {
		if i >= len(m.lane) || d.ID != m.lane[i] {
			m.rt.Fatalf("%s: %q, waiting %q", what, started(m.turn), m.lane)
		}
		if d.Stamp() >= fence {
			m.rt.Fatalf("%s: stamp %d under fence %d", what, d.Stamp(), fence)
		}
	}
}

func (m *model) effect(id string, stamp int64) {
	if stamp <= m.stamp {
		m.rt.Fatalf("%s took effect with stamp %d, after %d", id, stamp, m.stamp)
	}
	m.stamp = stamp
}

// settle draws how the turn ends.
func (m *model) settle() {
	if m.turn == nil {
		return
	}
	var vs []deferral.Verdict
	switch fails := rapid.Bool().Draw(m.rt, "fails"); {
	case m.direct != "" && fails:
		vs = []deferral.Verdict{{Delivery: m.turn.Direct(write("r", m.direct)), Fate: deferral.Entered}}
		m.lane = slices.Insert(m.lane, 0, m.direct)
	case m.direct != "":
		m.effect(m.direct, m.turn.Lease().Fence())
	}
	fate := deferral.Done
	for _, d := range m.turn.Deliveries() {
		if fate == deferral.Done || fate == deferral.Aside || fate == deferral.Buried { // the lane goes on
			fate = rapid.SampledFrom([]deferral.Fate{deferral.Done, deferral.Done, deferral.Aside, deferral.Buried, deferral.Failed, deferral.Return}).Draw(m.rt, d.ID)
		} else {
			fate = deferral.Return
		}
		vs = append(vs, deferral.Verdict{Delivery: d, Fate: fate})
		switch fate {
		case deferral.Done:
			m.effect(d.ID, d.Stamp())
		case deferral.Aside:
			m.aside = append(m.aside, d.ID)
		}
		if fate != deferral.Failed && fate != deferral.Return {
			m.lane = slices.DeleteFunc(m.lane, func(id string) bool { return id == d.ID })
		}
	}
	m.direct = ""
	s := deferral.Settlement{Verdicts: vs, Next: rapid.IntRange(0, 3).Draw(m.rt, "next"), GoOn: deferral.Always}
	got, err := m.turn.Settle(m.ctx(), s)
	if err != nil || !got.Held {
		m.rt.Fatalf("%+v, %v", got, err)
	}
	if got.More {
		m.rises("handed over")
		return
	}
	m.turn = nil
}

// look moves what has stepped aside into the lane, at its end.
func (m *model) look() {
	if _, err := m.q.Due(m.ctx(), 0, 1, 0, 0); err != nil {
		m.rt.Fatal(err)
	}
	ids, err := m.rdb.ZRange(m.ctx(), m.key("lane:r"), 0, -1).Result()
	if err != nil || len(ids) < len(m.lane) || !slices.Equal(ids[:len(m.lane)], m.lane) {
		m.rt.Fatalf("%v, the lane has %q, want %q first", err, ids, m.lane)
	}
	for _, id := range ids[len(m.lane):] {
		i := slices.Index(m.aside, id)
		if i < 0 {
			m.rt.Fatalf("%s is in the lane %q", id, ids)
		}
		m.aside = slices.Delete(m.aside, i, i+1)
	}
	m.lane = ids
}

// crash ends the turn without a word. What ran directly has taken effect, if it
// has, before it.
func (m *model) crash() {
	if m.turn != nil {
		m.bench.crash(m.turn)
	}
	m.turn, m.direct = nil, ""
}
