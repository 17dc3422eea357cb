package tune_test

import (
	"math"
	"testing"
	"time"

	"github.com/deferlock/deferlock/examples/pgwriter/tune"
)

func TestOnlyTheWindowCounts(t *testing.T) {
	r := tune.NewRecord(100*ms, 1100*ms)
	warm, in, late := write(1, 50*ms), write(2, 200*ms), write(3, 1050*ms)
	for _, w := range []tune.Write{warm, in, late} {
		r.Accept(w, w.Seq == 3)
	}
	r.Commit(90*ms, write(4, 10*ms))
	r.Commit(210*ms, warm, in)
	r.Commit(1200*ms, late)
	f := r.Figures()
	if f.Writes != 2 || f.Transactions != 1 || f.PerTransaction() != 2 {
		t.Errorf("%v writes a second in %v transactions, want 2 in 1", f.Writes, f.Transactions)
	}
	if f.Deferred != 0.5 {
		t.Errorf("%v of the writes deferred, want half of those called in the window", f.Deferred)
	}
	if f.P50 != 10*ms || f.P99 != 150*ms { // also of the write that was done after the window
		t.Errorf("p50 %v, p99 %v", f.P50, f.P99)
	}
}

func TestFullLoadIsMeasuredUntilAllIsDone(t *testing.T) {
	r := tune.NewRecord(500*ms, 0)
	r.Commit(400*ms, write(1, 0))
	r.Commit(600*ms, write(2, 0), write(3, 0), write(4, 550*ms))
	r.Commit(2500*ms, write(5, 600*ms))
	if f := r.Figures(); f.Writes != 2 || f.Transactions != 1 || f.Behind {
		t.Errorf("%+v, want 4 writes and 2 transactions in 2 s", f)
	}
}

func TestWriteThatIsDoneAgainCountsOnce(t *testing.T) {
	r := tune.NewRecord(0, time.Second)
	if n := r.Commit(10*ms, write(1, 0), write(2, 0)); n != 2 {
		t.Errorf("%d new writes, want 2", n)
	}
	if n := r.Commit(20*ms, write(2, 0), write(3, 0)); n != 1 {
		t.Errorf("%d new writes, want 1", n)
	}
	if f := r.Figures(); f.Writes != 3 {
		t.Errorf("%v writes, want 3", f.Writes)
	}
}

func TestMoreComingThanBeingDoneIsBehind(t *testing.T) {
	for _, c := range []struct {
		done   int
		behind bool
	}{{100, false}, {91, false}, {89, true}} {
		r := tune.NewRecord(0, time.Second)
		for i := range 100 {
			w := write(i+1, ms)
			r.Accept(w, false)
			at := 10 * ms
			if i >= c.done {
				at = 2 * time.Second
			}
			r.Commit(at, w)
		}
		if got := r.Figures().Behind; got != c.behind {
			t.Errorf("%d of 100 done: behind is %v", c.done, got)
		}
	}
}

func TestNothingHappenedHasNoFigures(t *testing.T) {
	if f := tune.NewRecord(time.Second, 0).Figures(); f != (tune.Figures{}) || f.PerTransaction() != 0 {
		t.Errorf("%+v", f)
	}
}

func TestSameSeedMakesTheSameWritesAtTheRate(t *testing.T) {
	l := tune.Load{Resources: 5, Skew: 1}
	a, b := tune.Writes(l, 1000, 10*time.Second, 7), tune.Writes(l, 1000, 10*time.Second, 7)
	hot, last := 0, time.Duration(0)
	for i, w := range a {
		if w != b[i] {
			t.Fatalf("write %d is not the same again", i+1)
		}
		if w.Seq != i+1 || w.Called < last || w.Called >= 10*time.Second {
			t.Fatalf("write %d is %+v, after %v", i+1, w, last)
		}
		last = w.Called
		if w.Account == "account-1" {
			hot++
		}
	}
	if math.Abs(float64(len(a))-10_000) > 500 {
		t.Errorf("%d writes in 10 s at 1000 a second", len(a))
	}
	if want := float64(len(a)) / (1 + 1./2 + 1./3 + 1./4 + 1./5); math.Abs(float64(hot)-want) > 0.1*want {
		t.Errorf("%d writes to the hottest account, want about %.0f", hot, want)
	}
}

func write(seq int, called time.Duration) tune.Write {
	return tune.Write{Seq: seq, Account: "account-1", Called: called}
}
