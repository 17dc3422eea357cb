package deferral_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// FuzzArguments calls what takes a number or a text with whatever numbers and
// texts there are. Each call is refused as invalid, or does what it should, and
// what else waits is delivered afterwards.
func FuzzArguments(f *testing.F) {
	b := newBench(f, redistest.Real(f), deferral.Config{})
	for _, n := range []int64{0, 1, -1, 1 << 31, math.MaxInt64, math.MinInt64, int64(time.Hour)} {
		for _, text := range []string{"", "a", "{b}:x", "\x00", "\xff", "\r\n$-1\r\n", strings.Repeat("x", 2000), "other", "nan", "-inf", "%s"} {
			f.Add(text, "id"+text, text, n, n, n)
		}
	}
	f.Fuzz(func(t *testing.T, resource, id, cause string, span, count, stamp int64) {
		b.t = t
		ctx := t.Context()
		if err := b.rdb.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		b.q = b.another(b.rdb)
		b.push("waits", "one", "two")
		ok := func(what string, err error) bool {
			for _, fine := range []error{deferral.ErrInvalid, deferral.ErrNotFound, deferral.ErrRunning, deferral.ErrDead} {
				if errors.Is(err, fine) {
					return false
				}
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			return err == nil
		}
		d := time.Duration(span)
		lookback := max(d, 0) // a negative one makes lanes due that have to come: see Due

		w := deferral.Write{Resource: resource, ID: id, Payload: []byte(cause), Delay: d}
		_, err := b.q.Push(ctx, w)
		ok("push", err)
		w.Delay, w.At = 0, time.UnixMicro(stamp)
		_, err = b.q.Push(ctx, w)
		ok("push at", err)
		_, err = b.q.Pop(ctx, int(count), time.Duration(stamp))
		if !ok("pop", err) {
			_, err = b.q.Due(ctx, int(count), int(count), lookback, d, resource)
			ok("due", err)
		}
		ok("pause", b.q.Pause(ctx, resource, cause))
		ok("resume", b.q.Resume(ctx, resource))
		ok("cancel", b.q.CancelIn(ctx, resource, id))
		_, err = b.q.LookupIn(ctx, resource, id)
		ok("look up", err)

		if resource != "waits" {
			w.At = time.Time{}
			if a, err := b.q.Admit(ctx, w); ok("admit", err) && a.Turn != nil {
				direct := deferral.Verdict{Delivery: a.Turn.Direct(w), Fate: deferral.Entered, Rest: d, Cause: cause}
				_, err := a.Turn.Settle(ctx, deferral.Settlement{Verdicts: []deferral.Verdict{direct}, Next: int(count), GoOn: deferral.GoOn(cause), Lookback: lookback})
				ok("settle", err)
				a.Turn.Lease().End()
			}
			if turn, err := b.q.Enter(ctx, resource, int(count), lookback); ok("enter", err) && turn != nil {
				for _, v := range turn.Deliveries() {
					ok("retry", errLost(v.Retry(ctx, d, errors.New(cause))))
					ok("bury", errLost(v.Bury(ctx, errors.New(cause))))
				}
				turn.Lease().End()
			}
			ok("revive", b.q.Revive(ctx, resource, id))
			ok("forget", b.q.Forget(ctx, resource, id))
		}
		_, err = b.q.Free(ctx, "waits") // it may have been popped
		ok("free", err)
		ids := ""
		for b.depth("waits") > 0 {
			turn := b.enter("waits", 1)
			ids += turn.Deliveries()[0].ID + " "
			b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		}
		if ids != "one two " {
			t.Errorf("delivered %q", ids)
		}
	})
}

// errLost makes nothing of the error that a delivery which has ended gets.
func errLost(err error) error {
	if errors.Is(err, deferral.ErrLost) {
		return nil
	}
	return err
}
