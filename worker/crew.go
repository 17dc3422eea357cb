package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
)

// crew is the runners of one Run or RunOnce: so many lanes at once, each in a
// goroutine that the crew waits for.
type crew struct {
	w     *Worker
	sched *schedule
	once  bool // one batch of each lane

	// ctx is what functions run under: it ends when the grace is over.
	ctx    context.Context
	cancel context.CancelCauseFunc

	finished atomic.Int64
	runners  sync.WaitGroup

	// freed has a token when a runner has become free since it was last read.
	freed chan struct{}

	// mu guards all below. A runner is added to runners only while closed is
	// false, so that nothing is added once the crew is waited for.
	mu     sync.Mutex
	free   int
	wanted bool // fetch waits for a runner: direct writes leave it the next one
	closed bool
	err    error // the first that Redis gave a runner
}

func newCrew(ctx context.Context, w *Worker, once bool) *crew {
	c := &crew{w: w, sched: newSchedule(w.queue.Shards()), once: once, free: w.cfg.Concurrency, freed: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return c
}

// reserve takes a free runner for what waits behind a direct write, if there is
// one, fetch does not wait for it and the crew is not closing.
func (c *crew) reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.wanted && c.reserveLocked()
}

func (c *crew) reserveLocked() bool {
	if c.closed || c.free == 0 {
		return false
	}
	c.free--
	c.runners.Add(1)
	return true
}

// await takes a runner for fetch, if one becomes free in d. Direct writes each
// reserve one for a moment as they end: many of them would else take every
// runner away from the lanes that fetch has been given.
func (c *crew) await(ctx context.Context, d time.Duration) bool {
	end := time.Now().Add(d)
	for {
		c.mu.Lock()
		got := c.reserveLocked()
		c.wanted = !got
		c.mu.Unlock()
		left := time.Until(end)
		if got || left <= 0 || ctx.Err() != nil {
			c.unwant()
			return got
		}
		sleep(ctx, c.freed, left)
	}
}

// vacancy waits until a runner is free, and reports false if none was in d.
func (c *crew) vacancy(ctx context.Context, d time.Duration) bool {
	c.mu.Lock()
	c.wanted = c.free == 0
	c.mu.Unlock()
	defer c.unwant()
	return sleep(ctx, c.freed, d)
}

func (c *crew) unwant() {
	c.mu.Lock()
	c.wanted = false
	c.mu.Unlock()
}

// release gives a runner back.
func (c *crew) release() {
	c.mu.Lock()
	c.free++
	c.mu.Unlock()
	c.runners.Done()
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// idle is how many runners are free.
func (c *crew) idle() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.free
}

// closing says that no function is to be begun any more.
func (c *crew) closing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// stop lets no function begin any more.
func (c *crew) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// failed keeps the first error that Redis gave a runner.
func (c *crew) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// failure is the first error that Redis gave a runner.
func (c *crew) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// batchSize is how many writes a runner may start next: none when the crew is
// closing.
func (c *crew) batchSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.once {
		return 0
	}
	return c.w.cfg.Batch
}

// goDrain runs a turn that was got for a reserved runner.
func (c *crew) goDrain(t *deferral.Turn) {
	go func() {
		defer c.release()
		(&drain{w: c.w, crew: c, turn: t}).run()
	}()
}

// goEnter looks into a lane with a reserved runner, and drains it.
func (c *crew) goEnter(lane string) {
	go func() {
		defer c.release()
		t, err := c.w.queue.Enter(c.ctx, lane, c.w.cfg.Batch, c.w.cfg.Lookback)
		switch {
		case err != nil:
			c.failed(err)
			if c.w.said.first("enter", lane) {
				c.w.log.WarnContext(c.ctx, "a lane could not be entered; it is looked at again", "error", err)
			}
		case t != nil:
			(&drain{w: c.w, crew: c, turn: t}).run()
		}
	}()
}

// close ends the crew: no function is begun, what runs may finish within grace
// and is cancelled then. It reports how many runners are still at it, because their
// functions ignore the end of their context.
func (c *crew) close(grace time.Duration) (left int) {
	c.stop()
	gone := make(chan struct{})
	go func() {
		c.runners.Wait()
		close(gone)
	}()
	defer c.cancel(ErrStopping)
	if within(gone, grace) {
		return 0
	}
	c.cancel(ErrStopping)
	if within(gone, lastCall) {
		return 0
	}
	return c.w.cfg.Concurrency - c.idle()
}

// lastCall is how long functions are given to heed the end of their context.
// It is longer than [settling], so that their locks can be given back.
const lastCall = 5 * time.Second

// within reports whether done was closed in d.
func within(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
