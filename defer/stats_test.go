package deferral_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

func (q operated) lanes() []deferral.Lane {
	q.t.Helper()
	var lanes []deferral.Lane
	for l, err := range q.Lanes(q.t.Context()) {
		if err != nil {
			q.t.Fatal(err)
		}
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b deferral.Lane) int { return strings.Compare(a.Name, b.Name) })
	return lanes
}

func TestStatsCountWhatWaits(t *testing.T) {
	for _, shards := range []int{1, 5} {
		onEachServer(t, deferral.Config{Shards: shards}, func(t *testing.T, q operated) {
			for i := range 3 {
				q.push("deep", fmt.Sprint(i))
			}
			q.push("", "lone")
			q.push("running", "1")
			q.push("running", "2")
			q.push("resting", "1")
			q.push("paused", "1")
			q.pushLater("deep", "later", time.Hour)
			q.bury("old", "", "1", "2")
			q.settle(q.enter("resting", 1), deferral.Verdict{Fate: deferral.Failed, Rest: time.Hour})
			for _, r := range []string{"paused", "paused and empty"} {
				if err := q.Pause(t.Context(), r, ""); err != nil {
					t.Fatal(err)
				}
			}
			turn := q.enter("running", 1)
			s, err := q.Stats(t.Context())
			if err != nil || s.Oldest <= 0 || s.Oldest > time.Minute {
				t.Fatalf("%+v, %v", s, err)
			}
			sum := deferral.Counts{Oldest: s.Oldest}
			for _, c := range s.Shards {
				sum.Waiting, sum.Lanes, sum.Due, sum.Running = sum.Waiting+c.Waiting, sum.Lanes+c.Lanes, sum.Due+c.Due, sum.Running+c.Running
				sum.Later, sum.Dead, sum.Paused = sum.Later+c.Later, sum.Dead+c.Dead, sum.Paused+c.Paused
			}
			want := deferral.Counts{Waiting: 8, Lanes: 5, Due: 2, Running: 1, Later: 1, Dead: 2, Paused: 2, Oldest: s.Oldest}
			if s.Counts != want || sum != want || len(s.Shards) != shards {
				t.Errorf("%+v\nwant %+v", s, want)
			}
			q.settle(turn, deferral.Verdict{Fate: deferral.Done})
		})
	}
}

func TestLanesTellHowEachStands(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.push("a resting", "1")
		q.push("a resting", "2")
		q.push("b running", "1")
		q.push("c endless", "1")
		q.push("", "lone")
		q.settle(q.enter("a resting", 1), deferral.Verdict{Fate: deferral.Failed, Rest: time.Hour, Cause: "no way"})
		if err := q.Pause(t.Context(), "d paused", "the books are closed"); err != nil {
			t.Fatal(err)
		}
		turn := q.enter("b running", 1)
		q.rdb.Set(t.Context(), "{accounts:0}:lock:c endless", "foreign", 0)

		lanes := q.lanes()
		if len(lanes) != 5 {
			t.Fatalf("%+v", lanes)
		}
		lone, resting, running, endless, paused := lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
		if lone.Resource != "" || lone.ID != "lone" || lone.Depth != 1 || lone.HeldFor != 0 || lone.Oldest <= 0 {
			t.Errorf("lone: %+v", lone)
		}
		if resting.Resource != "a resting" || resting.ID != "" || resting.Depth != 2 || resting.Attempts != 1 ||
			resting.Cause != "no way" || resting.Rest < 59*time.Minute || resting.Rest > time.Hour {
			t.Errorf("resting: %+v", resting)
		}
		if running.HeldFor <= 0 || running.HeldFor > q.LockTTL() || running.Attempts != 1 {
			t.Errorf("running: %+v", running)
		}
		if endless.HeldFor >= 0 {
			t.Errorf("endless: %+v", endless)
		}
		if paused.Name != "d paused" || paused.Depth != 0 || !paused.Paused || paused.Reason != "the books are closed" {
			t.Errorf("paused: %+v", paused)
		}
		q.settle(turn, deferral.Verdict{Fate: deferral.Done})
		if freed, err := q.Free(t.Context(), endless.Name); err != nil || !freed {
			t.Errorf("free: %v, %v", freed, err)
		}
	})
}

// crowd pushes one write to each of n resources, and a second to every third.
func crowd(t *testing.T, q operated, from, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := from + part; i < from+n; i += 4 {
				for j := range 1 + (i+2)/3 - (i+1)/3 {
					w := deferral.Write{Resource: fmt.Sprint("acc:", i), ID: fmt.Sprint(j)}
					if _, err := q.Push(t.Context(), w); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestEachOfThousandsOfLanesIsListedOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		n := 3000
		if !s.IsReal() {
			n = 150 // a miniredis takes a time in proportion to the lanes for each
		}
		q := operate(t, s.Client(t), deferral.Config{Shards: 2})
		crowd(t, q, 0, n)
		seen := map[string]int{}
		grown := false
		for l, err := range q.Lanes(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			seen[l.Name]++
			if !grown { // the index grows under the walk, and Redis rehashes it
				grown = true
				crowd(t, q, n, n)
			}
		}
		for i := range n {
			if name := fmt.Sprint("acc:", i); seen[name] != 1 {
				t.Errorf("%s was listed %d times", name, seen[name])
			}
		}
		for name, times := range seen {
			if times != 1 {
				t.Errorf("%s was listed %d times", name, times)
			}
		}
		stats, err := q.Stats(t.Context())
		if err != nil || stats.Lanes != 2*n || stats.Waiting != 2*n+(2*n+1)/3 {
			t.Errorf("%+v, %v", stats, err)
		}
	})
}

func TestDeepestIsInOrder(t *testing.T) {
	onEachServer(t, deferral.Config{Shards: 3}, func(t *testing.T, q operated) {
		for depth := range 12 {
			for i := range depth {
				q.push(fmt.Sprintf("acc:%02d", depth), fmt.Sprint(i))
			}
		}
		if err := q.Pause(t.Context(), "empty", ""); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 3, 11, 100} {
			deepest, err := q.Deepest(t.Context(), n)
			if err != nil || len(deepest) != min(n, 11) {
				t.Fatalf("%d: %d lanes, %v", n, len(deepest), err)
			}
			for i, l := range deepest {
				if l.Depth != 11-i || l.Resource != fmt.Sprintf("acc:%02d", l.Depth) {
					t.Errorf("%d: place %d is %+v", n, i, l)
				}
			}
		}
		for _, n := range []int{-1, 0, deferral.MaxDeepest + 1} {
			if _, err := q.Deepest(t.Context(), n); !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("%d: %v", n, err)
			}
		}
	})
}

func TestAListEndsWithItsFirstError(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		crowd(t, q, 0, 50)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n, failed := 0, 0
		for _, err := range q.Lanes(ctx) {
			if err != nil {
				failed++
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
			if n++; n == 10 {
				cancel()
			}
		}
		if failed != 1 {
			t.Errorf("%d errors after %d lanes", failed, n)
		}
		for range q.Lanes(t.Context()) {
			break // must end the walk, and leave nothing running
		}
		if _, err := q.Stats(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Stats: %v", err)
		}
	})
}

func TestStatsCostNothingForTheWritesInALane(t *testing.T) {
	const lanes, deep = 1000, 10_000
	s := redistest.Real(t)
	q := operate(t, s.Client(t), deferral.Config{})
	crowd(t, q, 0, lanes)
	pipe := q.rdb.Pipeline()
	for i := range deep {
		id := fmt.Sprint("w", i)
		pipe.ZAdd(t.Context(), "{accounts:0}:lane:acc:0", redis.Z{Score: float64(i), Member: id})
		pipe.Set(t.Context(), "{accounts:0}:write:acc:0\x00"+id, "", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := s.Commands(t)
	stats, err := q.Stats(t.Context())
	if err != nil || stats.Lanes != lanes || stats.Waiting < lanes+deep {
		t.Fatalf("%+v, %v", stats, err)
	}
	if n := s.Commands(t) - before; n > 6*lanes {
		t.Errorf("%d commands for %d lanes", n, lanes)
	}
}
