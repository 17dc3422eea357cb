package linear_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/lock"
)

// client does one thing after the other and records what it was told. It belongs
// to one goroutine.
type client struct {
	t      *testing.T
	number int
	epoch  time.Time
	random *rand.Rand
	queue  *deferral.Queue
	locker *lock.Locker
	loss   *loss // nil: no reply is lost

	turns   int // how many it has asked for
	ids     int
	open    []*turn
	history []porcupine.Operation
}

// turn is what a client holds, or believes to hold.
type turn struct {
	number   int
	resource string
	lease    *lock.Lease        // of acquire
	popped   *deferral.Delivery // of pop
	turn     *deferral.Turn     // of admit and enter
	direct   string             // the write that was admitted
}

// never is when a call ends whose outcome nobody was told.
const never = math.MaxInt64

func newClient(t *testing.T, number int, epoch time.Time, seed uint64, rdb redis.UniversalClient, l *loss) *client {
	t.Helper()
	const name, life = "n", time.Minute // no lock ends by itself before the test does
	q, err := deferral.New(rdb, deferral.Config{Name: name, LockTTL: life})
	if err != nil {
		t.Fatal(err)
	}
	locker, err := lock.New(rdb, lock.Config{Name: name, TTL: life})
	if err != nil {
		t.Fatal(err)
	}
	return &client{
		t: t, number: number, epoch: epoch, random: rand.New(rand.NewPCG(seed, uint64(number))), queue: q, locker: locker, loss: l,
	}
}

// newTurn is a number that no other turn has.
func (c *client) newTurn() int {
	c.turns++
	return c.turns*1000 + c.number
}

// do makes a call and records it. f reports what it was told, and the error.
func (c *client) do(in call, f func(ctx context.Context) (answer, error)) answer {
	c.t.Helper()
	c.loss.begin(c.random)
	began := c.now()
	out, err := f(c.t.Context())
	ended := c.now()
	lost := c.loss.end()
	out.again = lost > 0
	switch {
	case err == nil, errors.Is(err, lock.ErrHeld):
	case errors.Is(err, deferral.ErrNotFound): // also when it may have been there until the first attempt
		out.refused = "missing"
	case errors.Is(err, deferral.ErrUnclear), in.op == "acquire", in.op == "release":
		out = answer{unclear: true}
	case errors.Is(err, deferral.ErrDead):
		out.refused = "dead"
	case errors.Is(err, deferral.ErrRunning):
		out.refused = "running"
	default:
		c.t.Errorf("%s of %q on %q: %v", in.op, in.id, in.resource, err)
	}
	if out.unclear && lost == 0 {
		c.t.Errorf("%s of %q on %q: %v, although no reply was lost", in.op, in.id, in.resource, err)
	}
	c.record(in, out, began, ended, lost)
	return out
}

// record notes a call, as often as it was carried out. A script that is repeated
// because its reply was lost is mostly carried out as if it had been called once:
// the second time it finds done what it should do. But another can have undone it
// in between, as who runs and acknowledges the write that was pushed.
func (c *client) record(in call, out answer, began, ended int64, lost int) {
	switch in.op {
	case "push", "admit", "pause", "resume", "cancel", "revive":
		for range lost - b2i(out.unclear) {
			c.note(in, answer{unclear: true}, began, ended)
		}
		out.again = false
	}
	if !out.unclear {
		c.note(in, out, began, ended)
		if in.op == "admit" && lost > 0 && !out.won { // an attempt may have got the lock
			c.note(call{op: "withdraw", resource: in.resource, turn: in.turn}, out, began, ended)
		}
		return
	}
	c.note(in, out, began, never)
	switch in.op {
	case "admit", "enter", "acquire":
		c.note(call{op: "withdraw", resource: in.resource, turn: in.turn}, out, began, never)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *client) note(in call, out answer, began, ended int64) {
	c.history = append(c.history, porcupine.Operation{ClientId: c.number, Input: in, Output: out, Call: began, Return: ended})
}

// now is the time of a clock that all clients share.
func (c *client) now() int64 { return int64(time.Since(c.epoch)) }

// newID is mostly new; sometimes it is one of the few that all clients use.
func (c *client) newID() string {
	if c.random.IntN(8) == 0 {
		return fmt.Sprintf("of all %d", c.random.IntN(3))
	}
	c.ids++
	return fmt.Sprintf("%d of %d", c.ids, c.number)
}

// someID is that of a write there may be.
func (c *client) someID() string {
	if c.ids == 0 || c.random.IntN(2) == 0 {
		return fmt.Sprintf("of all %d", c.random.IntN(3))
	}
	return fmt.Sprintf("%d of %d", c.ids-c.random.IntN(min(3, c.ids)), c.number)
}

func (c *client) write(resource, id string) deferral.Write {
	return deferral.Write{Resource: resource, ID: id, Payload: []byte(id)}
}

func (c *client) acquire(resource string) {
	in := call{op: "acquire", resource: resource, turn: c.newTurn()}
	var lease *lock.Lease
	out := c.do(in, func(ctx context.Context) (a answer, err error) {
		if lease, err = c.locker.Acquire(ctx, resource); err == nil {
			a = answer{won: true, fence: lease.Fence()}
		}
		return a, err
	})
	if out.won {
		c.open = append(c.open, &turn{number: in.turn, resource: resource, lease: lease})
	}
}

func (c *client) push(resource string) {
	id := c.newID()
	c.do(call{op: "push", resource: resource, id: id}, func(ctx context.Context) (answer, error) {
		_, err := c.queue.Push(ctx, c.write(resource, id))
		return answer{}, err
	})
}

func (c *client) admit(resource string) {
	in := call{op: "admit", resource: resource, id: c.newID(), turn: c.newTurn()}
	var admitted *deferral.Admission
	out := c.do(in, func(ctx context.Context) (a answer, err error) {
		if admitted, err = c.queue.Admit(ctx, c.write(resource, in.id)); err != nil {
			return a, err
		}
		if admitted.Turn != nil {
			return answer{won: true, fence: admitted.Turn.Lease().Fence()}, nil
		}
		return answer{why: admitted.Why, count: admitted.Ahead}, nil
	})
	if out.won {
		c.open = append(c.open, &turn{number: in.turn, resource: resource, turn: admitted.Turn, direct: in.id})
	}
}

func (c *client) enter(resource string, most int) bool {
	in := call{op: "enter", resource: resource, turn: c.newTurn(), next: most}
	var entered *deferral.Turn
	out := c.do(in, func(ctx context.Context) (a answer, err error) {
		if entered, err = c.queue.Enter(ctx, resource, most, 0); entered != nil {
			a = answer{won: true, fence: entered.Lease().Fence(), batch: starts(entered)}
		}
		return a, err
	})
	if out.won {
		c.open = append(c.open, &turn{number: in.turn, resource: resource, turn: entered})
	}
	return out.won
}

func starts(t *deferral.Turn) []start {
	var out []start
	for _, d := range t.Deliveries() {
		out = append(out, start{d.ID, d.Attempt, d.Stamp()})
	}
	return out
}

// pop takes what is due on any resource, one write each. That it takes nothing
// says nothing about any.
func (c *client) pop() {
	began := c.now()
	got, err := c.queue.Pop(c.t.Context(), 2, 0)
	if err != nil {
		c.t.Errorf("pop: %v", err)
	}
	for _, d := range got {
		tn := &turn{number: c.newTurn(), resource: d.Resource, popped: d}
		out := answer{won: true, fence: d.Fence, batch: []start{{d.ID, d.Attempt, d.Stamp()}}}
		c.note(call{op: "enter", resource: d.Resource, turn: tn.number, next: 1}, out, began, c.now())
		c.open = append(c.open, tn)
	}
}

// operate is what operators do.
func (c *client) operate(op, resource string) {
	in := call{op: op, resource: resource}
	switch op {
	case "cancel", "lookup", "revive":
		in.id = c.someID()
	}
	c.do(in, func(ctx context.Context) (a answer, err error) {
		switch op {
		case "cancel":
			err = c.queue.CancelIn(ctx, resource, in.id)
		case "revive":
			err = c.queue.Revive(ctx, resource, in.id)
		case "pause":
			err = c.queue.Pause(ctx, resource, "why not")
		case "resume":
			err = c.queue.Resume(ctx, resource)
		case "free":
			a.held, err = c.queue.Free(ctx, resource)
		case "lookup":
			var it deferral.Item
			if it, err = c.queue.LookupIn(ctx, resource, in.id); err == nil {
				a = answer{place: it.Place, count: it.Ahead, attempt: it.Attempts}
			}
		}
		return a, err
	})
}
