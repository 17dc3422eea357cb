package load_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// taking is a peer whose calls take so long, and fail if it says so.
type taking struct {
	d     time.Duration
	err   error
	calls atomic.Int64
}

func (p *taking) Do(ctx context.Context, _ load.Write) error {
	p.calls.Add(1)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.d):
		return p.err
	}
}

func (p *taking) Run(ctx context.Context) error {
	<-ctx.Done()
	return p.err
}

func submit(ctx context.Context, l load.Load, p load.Peer) []measure.Submit {
	rec := measure.NewRecorder(l.Most, 0)
	l.Prepare()(ctx, p, rec)
	return rec.Records().Submits
}

func TestLoadEndsWithItsTimeOrItsWrites(t *testing.T) {
	for name, c := range map[string]struct {
		load load.Load
		want int
	}{
		"writes": {load.Load{Writers: 4, Most: 10, For: time.Hour}, 10},
		"time":   {load.Load{Writers: 4, Most: 1000, For: 5 * time.Second}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &taking{d: time.Second}
				if got := submit(t.Context(), c.load, p); len(got) != c.want || int(p.calls.Load()) != c.want {
					t.Errorf("%d records of %d calls, want %d", len(got), p.calls.Load(), c.want)
				}
			})
		})
	}
}

func TestWritersWithResourcesOfTheirOwnNeverMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[int32]bool{}
		for first := range 2 { // two processes
			l := load.Load{Writers: 3, First: 3 * first, FirstSeq: 300 * first, Most: 300, For: time.Hour}
			for _, s := range submit(t.Context(), l, &taking{d: time.Second}) {
				if seen[s.Resource] {
					t.Fatalf("resource %d came twice in %d writes", s.Resource, len(seen))
				}
				seen[s.Resource] = true
			}
		}
	})
}

func TestSkewMakesSomeResourcesHotterThanOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := map[int32]int{}
		l := load.Load{Writers: 4, Resources: 8, Skew: 1.1, Most: 8000, For: time.Hour}
		for _, s := range submit(t.Context(), l, &taking{}) {
			count[s.Resource]++
		}
		if len(count) != 8 || count[0] < 2*count[3] || count[3] < count[7] {
			t.Errorf("%v", count)
		}
	})
}

func TestAFailedCallIsToldFromOneThatWasCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := load.Load{Writers: 1, Most: 1, For: time.Hour}
		if got := submit(t.Context(), l, &taking{err: errors.New("no")}); got[0].Return != 0 {
			t.Errorf("failed: %v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := submit(ctx, l, &taking{d: time.Hour}); got[0].Return != measure.CutOff {
			t.Errorf("cut off: %v", got)
		}
	})
}

// A writer that is held up would otherwise hide how late the next one begins.
func TestAWriteIsTimedFromWhenItShouldHaveCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := measure.Now()
		l := load.Load{Writers: 1, Most: 1000, For: 10 * time.Second, PerSecond: 10}
		got := submit(t.Context(), l, &taking{d: time.Second})
		last := got[len(got)-1]
		if n := len(got); n < 70 || n > 130 {
			t.Errorf("%d writes came in 10 s, want about 100", n)
		}
		if late := time.Duration(last.Return - last.Call); late < 30*time.Second {
			t.Errorf("the last of %d writes of 1 s each returned %v after it should have come", len(got), late)
		}
		if at := time.Duration(last.Call - began); at > 10*time.Second {
			t.Errorf("the last write should have come after %v", at)
		}
	})
}

func TestRatesAreTheSameForTheSameSeed(t *testing.T) {
	calls := func(seed uint64) (sum float64) {
		synctest.Test(t, func(t *testing.T) {
			began := measure.Now()
			l := load.Load{Writers: 4, Most: 1000, For: 10 * time.Second, PerSecond: 10, Seed: seed}
			for _, s := range submit(t.Context(), l, &taking{}) {
				sum += float64(s.Call - began)
			}
		})
		return sum
	}
	if a, b, other := calls(1), calls(1), calls(2); math.Abs(a-b) > 1 || math.Abs(a-other) < 1 {
		t.Errorf("%v, %v with the same seed, %v with another", a, b, other)
	}
}

func TestStopWaitsForRunAndMayComeTwice(t *testing.T) {
	broken := errors.New("broken")
	for name, want := range map[string]error{"nil": nil, "error": broken} {
		t.Run(name, func(t *testing.T) {
			s := load.Start(t.Context(), &taking{err: want})
			for range 2 {
				if err := s.Stop(); !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
		})
	}
}

func TestAwaitSaysWhetherAllIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		count := func() int { return int(time.Since(began) / time.Second) }
		if !load.Await(t.Context(), count, 5) || time.Since(began) > 6*time.Second {
			t.Error("all was done after 5 s")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if load.Await(ctx, count, 100) {
			t.Error("not all was done")
		}
	})
}
