package backlog_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
)

// cost is what one write costs.
type cost struct {
	commands float64       // that Redis carried out, those inside of scripts too
	redis    float64       // microseconds of Redis's processor time, in the best of some rounds
	p50, p99 time.Duration // of a call's round trip
}

// loads are steady: each write that is taken out is followed by a new one,
// so that as many wait afterwards as before.
var loads = []struct {
	name string
	once func(ctx context.Context, q *deferral.Queue, i int) error
}{
	// What runs at once, beside the backlog.
	{"Do", func(ctx context.Context, q *deferral.Queue, i int) error {
		a, err := q.Admit(ctx, deferral.Write{Resource: fmt.Sprintf("free-%d", i), Kind: kind, Payload: make([]byte, 100)})
		if err != nil {
			return err
		}
		if a.Turn == nil {
			return fmt.Errorf("it has to wait: %v", a.Why)
		}
		_, err = a.Turn.Settle(ctx, deferral.Settlement{})
		return err
	}},
	// What finds others waiting and is deferred, and is then run: as a worker
	// does it, one due lane at a time, for a single write.
	{"defer, take, run, acknowledge", func(ctx context.Context, q *deferral.Queue, i int) error {
		due, err := q.Due(ctx, 0, 1, 0, 0)
		if err != nil {
			return err
		}
		if len(due.Lanes) != 1 {
			return fmt.Errorf("%d lanes are due", len(due.Lanes))
		}
		turn, err := q.Enter(ctx, due.Lanes[0], 1, 0)
		if err != nil {
			return err
		}
		if turn == nil || len(turn.Deliveries()) != 1 {
			return fmt.Errorf("there is nothing to do in a lane that is due")
		}
		a, err := q.Admit(ctx, deferral.Write{Resource: turn.Resource(), Kind: kind, Payload: make([]byte, 100)})
		if err != nil {
			return err
		}
		if a.Turn != nil {
			return fmt.Errorf("it need not wait")
		}
		_, err = turn.Settle(ctx, deferral.Settlement{
			Verdicts: []deferral.Verdict{{Delivery: turn.Deliveries()[0], Fate: deferral.Done}}, GoOn: deferral.Always,
		})
		return err
	}},
}

// layouts are where the backlog lies.
var layouts = []struct {
	name string
	of   func(i int) string
}{
	{"one lane", hot(1)},
	{"1,000 lanes", hot(1000)},
	{"a lane each", cold},
}

// Each load is measured so many times. What the machine does besides shows in
// some of the rounds only, and in the tail.
const (
	rounds  = 10
	inRound = 100
)

func TestCostOfAWriteDoesNotGrowWithTheBacklog(t *testing.T) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "backlog\tin\tbytes a write\tload\tRedis commands\tµs of Redis's CPU\tp50\tp99\t")
	for _, l := range layouts {
		s := newStore(t)
		s.warm(l.of)
		empty, first := s.settled(), map[string]cost{}
		waiting := 0
		for _, depth := range depths() {
			s.push(waiting, depth, func(int) int { return 100 }, l.of)
			waiting = depth
			bytes := (s.settled() - empty) / depth
			for _, load := range loads {
				c := s.measure(load.once)
				fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%.1f\t%.0f\t%v\t%v\t\n", depth, l.name, bytes, load.name, c.commands, c.redis, c.p50, c.p99)
				if _, there := first[load.name]; !there {
					first[load.name] = c
				}
				// Commands are counted, and must be the same. Processor time is
				// measured, on a machine that does other things too.
				if f := first[load.name]; c.commands > 1.02*f.commands || c.redis > 3*f.redis {
					t.Errorf("%s, %d in %s: %.1f commands and %.0f µs; it was %.1f and %.0f with %d",
						load.name, depth, l.name, c.commands, c.redis, f.commands, f.redis, depths()[0])
				}
			}
		}
		s.redis.Kill()
		w.Flush()
	}
}

// depths are the backlogs in turn, up to what was asked for.
func depths() []int {
	var ds []int
	for d := 1000; d < *writes; d *= 10 {
		ds = append(ds, d)
	}
	return append(ds, *writes)
}

// measure runs a load in one goroutine and says what it costs.
func (s *store) measure(once func(ctx context.Context, q *deferral.Queue, i int) error) cost {
	s.t.Helper()
	ctx := s.t.Context()
	rdb := s.client(1)
	defer rdb.Close()
	q := s.queue(rdb)
	if err := once(ctx, q, -1); err != nil { // the first makes a connection
		s.t.Fatal(err)
	}
	c := cost{redis: math.Inf(1)}
	var took []time.Duration
	for round := range rounds {
		calls, us := s.spent()
		for i := range inRound {
			began := time.Now()
			if err := once(ctx, q, round*inRound+i); err != nil {
				s.t.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		callsNow, usNow := s.spent()
		c.commands += float64(callsNow-calls) / (rounds * inRound)
		c.redis = min(c.redis, float64(usNow-us)/inRound)
	}
	slices.Sort(took)
	c.p50, c.p99 = took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond)
	return c
}

// warm makes Redis remember the scripts, which take memory too, and leaves
// nothing else.
func (s *store) warm(of func(i int) string) {
	s.t.Helper()
	s.push(0, 1, func(int) int { return 100 }, of)
	rdb := s.client(1)
	defer rdb.Close()
	for _, load := range loads {
		if err := load.once(s.t.Context(), s.queue(rdb), 0); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.admin.FlushAll(s.t.Context()).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// spent is how many commands Redis has carried out but for INFO, and how many
// microseconds of a processor it has used. Its own account of the time that
// commands took would count that of other processes with it.
func (s *store) spent() (calls, us int) {
	s.t.Helper()
	text, err := s.admin.InfoMap(s.t.Context(), "commandstats", "cpu").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for name, stats := range text["Commandstats"] {
		if strings.HasPrefix(name, "cmdstat_info") || strings.HasPrefix(name, "cmdstat_client") {
			continue
		}
		first, _, _ := strings.Cut(stats, ",")
		n, err := strconv.Atoi(strings.TrimPrefix(first, "calls="))
		if err != nil {
			s.t.Fatalf("%s is %q", name, stats)
		}
		calls += n
	}
	for _, field := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(text["CPU"][field], 64)
		if err != nil {
			s.t.Fatalf("%s: %v", field, err)
		}
		us += int(seconds * 1e6)
	}
	return calls, us
}
