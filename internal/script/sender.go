package script

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sender runs scripts on one Redis, and lets those that are run at the same time
// share flights.
//
// Most of what a script costs, on a server that is near, is the system calls of
// both sides and the wake-ups between them; a pipeline of twenty costs hardly
// more of these than a single script. So when there is a crowd, and a few flights
// are under way, everybody else waits, and the first to land takes all who wait
// along in one pipeline. A caller who is alone never waits and never meets a
// pipeline, nor do a few: waiting costs wake-ups of its own. Where the server is
// far, so that waiting for a flight costs more than it saves, more flights are
// under way before anybody waits.
//
// Every call keeps its own end: one whose context ends while it waits is not
// sent, and one that is under way is reported as unclear at once, whatever the
// rest of its flight does.
//
// It is go-redis's pipeline, not its auto-pipelining: that replays a batch as a
// whole and does not heed the context of a command that is queued.
type Sender struct {
	rdb   redis.UniversalClient
	share bool

	timers sync.Pool // *time.Timer, stopped

	// mu guards all below. While anybody waits, something flies.
	mu     sync.Mutex
	flying int         // how many flights are under way
	calls  int         // how many calls are, with those that wait
	enough int         // how many flights there are before all others wait
	queued []*call     // who waits, oldest first
	since  time.Time   // when the first of them came to an empty queue
	tired  *time.Timer // ends their patience
	way    way         // how far the server is
}

const (
	// crowd is how many calls there are before anybody waits.
	crowd = 8

	// party is how many calls are worth a flight while another is under way,
	// unless their patience has ended.
	party = 8

	// fewFlights is how many flights are enough for a server that is near. More
	// of them would be smaller, one alone would leave the server idle while the
	// client works on its replies.
	fewFlights = 3

	// mostFlights is how many are enough for one that is far.
	mostFlights = 16

	// patience is how long a call waits for others' flights to land before it
	// is one flight more, which is how those do no harm that hang on a dead
	// connection. (An idle Go program's timers can take a millisecond.)
	patience = 250 * time.Microsecond

	// mostTogether bounds the calls of one flight, so that the first does not
	// wait for the replies to all that the server does for the others.
	mostTogether = 128

	// shareable is how many bytes of arguments a call may have that shares a
	// flight: sending a large one would hold the others up.
	shareable = 16 << 10
)

// NewSender returns a Sender for rdb. Scripts share flights when rdb is the
// client of one server: one of a cluster would have to take a pipeline apart.
func NewSender(rdb redis.UniversalClient) *Sender {
	_, single := rdb.(*redis.Client)
	return &Sender{rdb: rdb, share: single, enough: fewFlights}
}

// call is one attempt to run a script.
type call struct {
	ctx     context.Context
	cmd     once
	written atomic.Bool

	// done is closed when the call's flight has landed, and flight then is how
	// that as a whole ended. They are not used by a call that flies alone.
	done   chan struct{}
	flight error
}

// errGone is the outcome of a call whose flight was ended from outside, by a hook
// that ended the goroutine.
var errGone = errors.New("its flight never landed")

// outcome says how the call ended. flight is how its pipeline as a whole did.
func (c *call) outcome(flight error) (_ Reply, written bool, _ error) {
	// After an error of another command in a pipeline, go-redis may put that on
	// those that were answered too: only the value tells.
	v, err := c.cmd.Val(), c.cmd.Err()
	switch {
	case v != nil || errors.Is(err, redis.Nil):
		return Reply{Value: v}, true, nil
	case err != nil:
		return Reply{}, c.written.Load(), err
	case flight != nil: // a hook's: it is not set on the commands
		return Reply{}, c.written.Load(), flight
	}
	return Reply{}, true, nil
}

// fly sends c, alone or with others, and returns its outcome.
func (p *Sender) fly(c *call) (_ Reply, written bool, _ error) {
	if !p.share || size(c.cmd.Args()) > shareable {
		return c.outcome(p.rdb.Process(c.ctx, c.cmd))
	}
	if p.board(c) {
		return p.await(c)
	}
	defer p.landed(1, time.Now())
	return c.outcome(p.rdb.Process(c.ctx, c.cmd))
}

// board lets c wait for a flight, and sends one off if enough wait for it. It
// returns false if there is no need to: c is a flight by itself then, which has to
// land.
func (p *Sender) board(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.calls <= crowd {
		p.flying++
		return false
	}
	c.done = make(chan struct{})
	if len(p.queued) == 0 {
		p.since = time.Now()
		if p.tired == nil {
			p.tired = time.AfterFunc(patience, p.depart)
		} else {
			p.tired.Reset(patience)
		}
	}
	p.queued = append(p.queued, c)
	if p.flying == 0 || p.flying < p.enough && len(p.queued) >= party {
		p.flying++
		go p.flights(p.takeLocked())
	}
	return true
}

// await waits for the end of a call that was queued.
func (p *Sender) await(c *call) (_ Reply, written bool, _ error) {
	var late <-chan time.Time
	if d, ok := c.ctx.Deadline(); ok { // of which Done may not tell: see Until
		t := p.timer(time.Until(d))
		defer p.stop(t)
		late = t.C
	}
	select {
	case <-c.done:
		return c.outcome(c.flight)
	case <-c.ctx.Done():
	case <-late:
	}
	sent := !p.leave(c)
	select {
	case <-c.done: // at the same moment
		return c.outcome(c.flight)
	default:
	}
	if err := over(c.ctx); err != nil {
		return Reply{}, sent, err
	}
	return Reply{}, sent, context.DeadlineExceeded
}

// timer is time.NewTimer with the timers that stop was given: almost none ever
// fires.
func (p *Sender) timer(d time.Duration) *time.Timer {
	if t, ok := p.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (p *Sender) stop(t *time.Timer) {
	t.Stop()
	p.timers.Put(t)
}

// leave takes c out of the queue, and returns false if it is under way.
func (p *Sender) leave(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.queued, c)
	if i < 0 {
		return false
	}
	p.queued = slices.Delete(p.queued, i, i+1)
	p.calls--
	return true
}

// landed ends a flight of n calls that has begun at a time; those who wait are
// the next.
func (p *Sender) landed(n int, began time.Time) {
	if calls := p.next(n, time.Since(began)); calls != nil {
		go p.flights(calls)
	}
}

// flights sends calls, and then all that have queued meanwhile, until nobody
// waits. Everybody it works for waits for it; it ends, at the latest, by the
// client's time-outs.
func (p *Sender) flights(calls []*call) {
	began := time.Now()
	defer func() {
		if calls != nil { // a hook has ended the goroutine
			p.landed(len(calls), began)
		}
	}()
	for calls != nil {
		p.together(calls)
		now := time.Now()
		calls, began = p.next(len(calls), now.Sub(began)), now
	}
}

// depart is run by the timer tired: those who wait are one flight more.
func (p *Sender) depart() {
	p.mu.Lock()
	var calls []*call
	if len(p.queued) > 0 && p.flying < mostFlights {
		p.flying++
		calls = p.takeLocked()
	}
	p.mu.Unlock()
	if calls != nil {
		p.flights(calls)
	}
}

// next takes the calls of the next flight, after one of n calls that took so
// long. If nobody waits, or they can be left to another flight, it ends the flight
// of whoever asks.
func (p *Sender) next(n int, took time.Duration) []*call {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls -= n
	if far, known := p.way.flown(n, took); known && far {
		p.enough = mostFlights
	} else if known {
		p.enough = fewFlights
	}
	toOthers := p.flying > p.enough || p.flying > 1 && len(p.queued) < party
	if len(p.queued) == 0 || toOthers && time.Since(p.since) < patience {
		p.flying--
		return nil
	}
	return p.takeLocked()
}

func (p *Sender) takeLocked() []*call {
	n := min(len(p.queued), mostTogether)
	calls := slices.Clone(p.queued[:n])
	p.queued = slices.Delete(p.queued, 0, n)
	return calls
}

// together sends calls in one pipeline.
func (p *Sender) together(calls []*call) {
	err := errGone
	defer func() {
		for _, c := range calls {
			c.flight = err
			close(c.done)
		}
	}()
	ctx := p.contextOf(calls)
	if len(calls) == 1 {
		err = p.rdb.Process(ctx, calls[0].cmd)
		return
	}
	pipe := p.rdb.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.cmd)
	}
	_, err = pipe.Exec(ctx)
}

// contextOf is the context of a flight: it has the values of the first call,
// for traces, and ends with the last of all deadlines.
func (p *Sender) contextOf(calls []*call) context.Context {
	ctx := context.WithoutCancel(calls[0].ctx)
	var last time.Time
	for _, c := range calls {
		d, ok := c.ctx.Deadline()
		if !ok {
			return ctx
		}
		if d.After(last) {
			last = d
		}
	}
	return Until(ctx, last)
}

// way measures how long it takes to get to the server and back: the shortest of
// a number of flights. A machine that is busy makes most flights long, but not
// all of them, and there sharing helps most.
type way struct {
	flights  int
	shortest time.Duration
}

const (
	wayFlights = 32

	// wayFar is where waiting for a flight begins to cost more than it saves, and
	// wayCall what a call in a flight adds to it.
	wayFar  = 250 * time.Microsecond
	wayCall = 25 * time.Microsecond
)

// flown notes a flight of n calls. Every so many flights it is known how far the
// server is.
func (w *way) flown(n int, took time.Duration) (far, known bool) {
	took -= time.Duration(n-1) * wayCall
	if w.flights == 0 || took < w.shortest {
		w.shortest = took
	}
	w.flights++
	if w.flights < wayFlights {
		return false, false
	}
	w.flights = 0
	return w.shortest > wayFar, true
}

// size is how many bytes the texts among args have.
func size(args []any) int {
	n := 0
	for _, a := range args {
		switch a := a.(type) {
		case string:
			n += len(a)
		case []byte:
			n += len(a)
		}
	}
	return n
}
