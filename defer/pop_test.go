package deferral_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// pop pops until num writes have come, all of which are due sooner or later.
func (b *bench) pop(num int, previous time.Duration) []*deferral.Delivery {
	b.t.Helper()
	if num == 0 {
		return nil
	}
	var out []*deferral.Delivery
	redistest.Wait(b.t, fmt.Sprint(num, " deliveries"), func() bool {
		ds, err := b.q.Pop(b.t.Context(), num-len(out), previous)
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, ds...)
		return len(out) == num
	})
	return out
}

func (b *bench) ack(ds ...*deferral.Delivery) {
	b.t.Helper()
	for _, d := range ds {
		if err := d.Ack(b.t.Context()); err != nil {
			b.t.Error(err)
		}
	}
}

// Recipe 1, the kaito queue: what was pushed less than previous ago is not
// popped yet, and num and previous are the caller's at every call.
func TestPopGivesWhatWasPushedAtLeastPreviousAgo(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		const previous = 200 * time.Millisecond
		began := b.now()
		for i := range 20 {
			b.push("", fmt.Sprintf("%02d", i))
		}
		pushed := b.now()
		early, err := b.q.Pop(t.Context(), 10, previous)
		if err != nil || len(early) != 0 && b.now().Sub(began) < previous {
			t.Fatalf("at once: %d, %v", len(early), err)
		}
		first := append(early, b.pop(10-len(early), previous)...)
		if after := b.now().Sub(began); after < previous {
			t.Errorf("10 came after %v", after)
		}
		for i, d := range first {
			if want := fmt.Sprintf("%02d", i); d.ID != want || d.Attempt != 1 || d.Waited < previous {
				t.Errorf("%d: %s, attempt %d, waited %v", i, d.ID, d.Attempt, d.Waited)
			}
		}
		if ds, err := b.q.Pop(t.Context(), 20, time.Hour); err != nil || len(ds) != 0 {
			t.Errorf("an hour ago: %d, %v", len(ds), err)
		}
		second, err := b.q.Pop(t.Context(), 3, 0)
		if err != nil || len(second) != 3 {
			t.Fatalf("%d, %v", len(second), err)
		}
		second = append(second, b.pop(7, previous)...)
		if after := b.now().Sub(pushed); after < previous-20*time.Millisecond {
			t.Errorf("the rest came after %v", after)
		}
		b.ack(first...)
		b.ack(second...)
		if ds, err := b.q.Pop(t.Context(), 10, 0); err != nil || len(ds) != 0 {
			t.Errorf("in the end: %d, %v", len(ds), err)
		}
	})
}

func TestTwoThatPopAtOnceNeverGetTheSameWrite(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		const writes = 100
		b.manyKeys()
		for i := range writes {
			resource := ""
			if i%2 == 0 {
				resource = fmt.Sprint("r", i)
			}
			b.push(resource, fmt.Sprint(i))
		}
		var mu sync.Mutex // guards got
		got := map[string]int{}
		var wg sync.WaitGroup
		for range 4 {
			q := b.another(b.s.Client(t))
			wg.Go(func() {
				for {
					ds, err := q.Pop(t.Context(), 7, 0)
					if err != nil {
						t.Error(err)
					}
					if len(ds) == 0 {
						return
					}
					for _, d := range ds {
						mu.Lock()
						got[d.ID]++
						mu.Unlock()
						if err := d.Ack(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		for _, d := range b.pop(writes-len(got), 0) { // handed to one that found it gone
			got[d.ID]++
			b.ack(d)
		}
		for id, n := range got {
			if n != 1 {
				t.Errorf("%s was popped %d times", id, n)
			}
		}
	})
}

// Recipe 2: something that is to happen once, at a given time.
func TestWhatIsDueAtATimeIsTakenByExactlyOne(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		at := b.now().Add(50 * time.Millisecond)
		b.wantDue(0)
		for range 3 { // whoever says so first
			if _, err := b.q.Push(t.Context(), deferral.Write{ID: "once", At: at}); err != nil {
				t.Fatal(err)
			}
		}
		redistest.Wait(t, "the time to come", func() bool { return b.now().After(at) })
		got := make([][]*deferral.Delivery, 4)
		var wg sync.WaitGroup
		for i := range got {
			q := b.another(b.s.Client(t))
			wg.Go(func() {
				var err error
				if got[i], err = q.Pop(t.Context(), 1, 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ds := slices.Concat(got...)
		if len(ds) != 1 || ds[0].ID != "once" {
			t.Fatalf("%d deliveries", len(ds))
		}
		b.ack(ds...)
	})
}

// Recipe 3: a message with an ID, its content and a delay is stored in one step.
func TestDelayedMessageIsStoredInOneStep(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		q := b.another(p.Client(t))
		for i, w := range []deferral.Write{{ID: "warm", Delay: time.Hour}, {ID: "m", Delay: time.Hour, Payload: []byte("hello")}} {
			p.Reset()
			if _, err := q.Push(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if n := p.Requests(); i > 0 && n != 1 {
				t.Errorf("%d commands", n)
			}
		}
		b.push("", "now")
		ds := b.pop(1, 0)
		if string(ds[0].Payload) != "payload of now" {
			t.Errorf("payload %q", ds[0].Payload)
		}
		b.ack(ds...)
	})
}

// Recipe 4: what fails is tried again every so often, and given up in the end.
func TestFailureIsRetriedEverySoOftenAndBuriedInTheEnd(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		const every, most = 30 * time.Millisecond, 3
		b.push("r", "a", "b")
		reason := errors.New("no such account")
		for n := 1; n <= most; n++ {
			d := b.pop(1, 0)[0]
			if d.ID != "a" || d.Attempt != n || n > 1 && d.Cause != reason.Error() {
				t.Fatalf("attempt %d: %s, attempt %d, cause %q", n, d.ID, d.Attempt, d.Cause)
			}
			failed := b.now()
			if n == most {
				if err := d.Bury(t.Context(), reason); err != nil {
					t.Fatal(err)
				}
				break
			}
			if err := d.Retry(t.Context(), every, reason); err != nil {
				t.Fatal(err)
			}
			redistest.Wait(t, "the next attempt to be due", func() bool { return len(b.due(1, 0).Lanes) == 1 })
			if after := b.now().Sub(failed); after < every {
				t.Errorf("again after %v", after)
			}
			b.del("due") // as if nobody had been sent there
			b.rdb.ZAdd(t.Context(), b.key("due"), redis.Z{Member: "r"})
		}
		if grave := b.rdb.HGet(t.Context(), b.key("graves"), "r\x00a").Val(); grave == "" {
			t.Error("there is no dead letter")
		}
		d := b.pop(1, 0)[0]
		if d.ID != "b" {
			t.Errorf("behind it comes %s", d.ID)
		}
		b.ack(d)
	})
}

// Recipe 5: what is not acknowledged in time comes again, and never before.
func TestWhatIsNotAcknowledgedInTimeComesAgain(t *testing.T) {
	onBoth(t, deferral.Config{LockTTL: 150 * time.Millisecond}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		b.push("", "lone")
		first := b.pop(2, 0)
		popped := b.now()
		if ds, err := b.q.Pop(t.Context(), 2, 0); err != nil || len(ds) != 0 && b.now().Sub(popped) < 100*time.Millisecond {
			t.Errorf("popped again at once: %v, %v", ds, err)
		}
		again := b.pop(2, 0)
		for i, d := range again {
			if d.Attempt != 2 || d.Fence <= first[i].Fence {
				t.Errorf("%s: attempt %d, fence %d after %d", d.ID, d.Attempt, d.Fence, first[i].Fence)
			}
		}
		if err := first[0].Extend(t.Context()); !errors.Is(err, deferral.ErrLost) {
			t.Errorf("extended what is another's: %v", err)
		}
		b.ack(first...) // late, and none too late
		b.ack(again...)
		d := b.pop(1, 0)[0]
		if d.ID != "b" || d.Attempt != 1 {
			t.Errorf("then %s, attempt %d", d.ID, d.Attempt)
		}
		for range 5 { // longer than its lock lives
			if err := d.Extend(t.Context()); err != nil && !errors.Is(err, deferral.ErrLost) {
				t.Error(err)
			}
		}
		b.ack(d)
		redistest.Wait(t, "the locks to expire", func() bool {
			locks, err := redistest.Locks(t.Context(), b.rdb, "n")
			return err == nil && len(locks) == 0
		})
	})
}

func TestPopTakesOneWriteOfAResource(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a", "b")
		b.push("s", "c")
		ds := b.pop(2, 0)
		if more, err := b.q.Pop(t.Context(), 10, 0); err != nil || len(more) != 0 {
			t.Errorf("while both are out: %v, %v", more, err)
		}
		b.ack(ds...)
		d := b.pop(1, 0)[0]
		if d.ID != "b" {
			t.Errorf("then %s", d.ID)
		}
		b.ack(d)
	})
}

// What a newer release has written is left for one that can read it, uncounted,
// and does not stop what this one can read.
func TestWriteThatCannotBeReadIsLeftAlone(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		b.push("s", "b")
		b.rdb.Set(t.Context(), b.key("write:r\x00a"), "\x02 from the future", 0)
		d := b.pop(1, 0)[0]
		if d.ID != "b" {
			t.Fatalf("popped %s", d.ID)
		}
		b.ack(d)
		if ds, err := b.q.Pop(t.Context(), 5, 0); err != nil || len(ds) != 0 {
			t.Errorf("popped %v, %v", ds, err)
		}
		tries := b.rdb.HGet(t.Context(), b.key("tries"), "r\x00a").Val()
		if len(tries) < 2 || tries[:2] != "0 " {
			t.Errorf("it was counted: %q", tries)
		}
		b.rdb.Set(t.Context(), b.key("write:r\x00a"), "\x01\x00\x00\x00\x00\x00read", 0)
		d = b.pop(1, 0)[0]
		if string(d.Payload) != "read" || d.Attempt != 1 || d.Cause == "" {
			t.Errorf("%q, attempt %d, cause %q", d.Payload, d.Attempt, d.Cause)
		}
		b.ack(d)
	})
}
