package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/keyspace"
)

// Run runs the writes that were deferred, by any process, until ctx ends. Then
// it begins no other, lets what is running finish within Config.Grace, cancels what is not, gives
// the locks back and returns. A write cut off that way is not lost and not
// counted. Trouble with Redis does not end Run: it says so once, slows down and
// goes on. It returns nil after a clean stop, [ErrRunning] if this worker's Run
// is under way already, and [ErrAbandoned] if functions ignored the end of their
// context; they hold on to their goroutines until they return.
func (w *Worker) Run(ctx context.Context) error {
	c := newCrew(ctx, w, false)
	if !w.crew.CompareAndSwap(nil, c) {
		return ErrRunning
	}
	var helpers sync.WaitGroup
	hctx, stop := context.WithCancel(ctx)
	helpers.Go(func() { w.listen(hctx, c.sched) })
	helpers.Go(func() { w.examine(hctx) })

	w.fetch(ctx, c)

	stop()
	left := c.close(w.cfg.Grace)
	w.crew.Store(nil)
	helpers.Wait()
	if left > 0 {
		w.log.ErrorContext(ctx, "Run stopped while writes ignore the end of their context", "writes", left)
		return fmt.Errorf("%w: %d", ErrAbandoned, left)
	}
	return nil
}

// RunOnce runs one batch of every lane that is due, up to Config.Concurrency
// lanes at once, and returns when they are done: how many writes took effect,
// and Redis's error if there was one. It is for a loop that the caller already
// has. When ctx ends, what is running is cancelled after Config.Grace.
func (w *Worker) RunOnce(ctx context.Context) (int, error) {
	c := newCrew(ctx, w, true)
	err := w.fetchOnce(ctx, c)
	var watch sync.WaitGroup
	drained := make(chan struct{})
	watch.Go(func() {
		select {
		case <-drained:
		case <-ctx.Done():
			c.stop()
			if !within(drained, w.cfg.Grace) {
				c.cancel(ErrStopping)
			}
		}
	})
	c.runners.Wait()
	close(drained)
	watch.Wait()
	c.cancel(ErrStopping)
	if err == nil {
		err = c.failure()
	}
	return int(c.finished.Load()), err
}

func (w *Worker) fetchOnce(ctx context.Context, c *crew) error {
	for shard := range w.queue.Shards() {
		if ctx.Err() != nil {
			return ended(ctx)
		}
		n := c.idle()
		if n == 0 {
			return nil
		}
		if _, err := w.look(ctx, c, shard, n); err != nil {
			return err
		}
	}
	return nil
}

// interval is the longest time between two looks at a shard.
func (w *Worker) interval() time.Duration { return w.cfg.Poll * time.Duration(w.queue.Shards()) }

// look hands the due lanes of a shard, up to n, to free runners.
func (w *Worker) look(ctx context.Context, c *crew, shard, n int) (deferral.Due, error) {
	mark := max(3*w.interval(), 30*time.Second)
	due, err := w.queue.Due(ctx, shard, n, w.cfg.Lookback, mark, w.left.lanes()...)
	if err != nil {
		return due, err
	}
	end := time.Now().Add(runnerWait)
	for _, lane := range due.Lanes {
		if c.await(ctx, time.Until(end)) {
			c.goEnter(lane)
		}
	}
	for _, lane := range due.Endless {
		w.warnEndless(ctx, lane)
	}
	for _, ref := range due.Torn {
		resource, id := keyspace.Split(ref)
		w.log.ErrorContext(ctx, "a write for later has lost its payload and cannot run", "resource", resource, "id", id)
		w.observe(ctx, Event{Type: EventTorn, Resource: resource, ID: id})
	}
	return due, nil
}

// runnerWait is how long lanes that were found due are kept for runners that
// were free a moment ago: not longer than nobody else is given them.
const runnerWait = time.Second

// fetch looks at the shards as the schedule says, until ctx ends. It asks for as
// many lanes as there are free runners.
func (w *Worker) fetch(ctx context.Context, c *crew) {
	failures := 0
	for ctx.Err() == nil {
		n := c.idle()
		if n == 0 {
			w.waitForRunner(ctx, c)
			continue
		}
		shard, in := c.sched.first()
		if in > 0 {
			sleep(ctx, c.sched.changed, in)
			continue
		}
		c.sched.begin(shard, w.interval())
		due, err := w.look(ctx, c, shard, n)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			w.trouble(ctx, failures, err)
			c.sched.soon(shard, 0)
			sleep(ctx, nil, troubleRest(failures))
		case failures > 0:
			w.log.InfoContext(ctx, "Redis answers again", "failures", failures)
			failures = 0
			fallthrough
		default:
			if due.Next >= 0 {
				c.sched.soon(shard, due.Next)
			}
		}
	}
}

// waitForRunner waits until a runner is free. Should that take long, the mark
// that somebody runs this queue is renewed.
func (w *Worker) waitForRunner(ctx context.Context, c *crew) {
	if c.vacancy(ctx, w.interval()) {
		return
	}
	for shard := range w.queue.Shards() {
		if _, err := w.look(ctx, c, shard, 0); err != nil {
			return // fetch says so, once there is a runner
		}
	}
}

// trouble says once that Redis does not answer.
func (w *Worker) trouble(ctx context.Context, failures int, err error) {
	if failures == 1 {
		w.log.ErrorContext(ctx, "Redis does not answer as it should; trying again", "error", err)
	}
}

// troubleRest is how long Run waits after so many failures in a row.
func troubleRest(failures int) time.Duration {
	return min(50*time.Millisecond<<min(failures-1, 10), 5*time.Second)
}

// sleep waits for d, until early has something, or until ctx ends. It reports
// whether it was cut short.
func sleep(ctx context.Context, early <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-early:
		return true
	case <-t.C:
		return false
	}
}

// listen turns nudges into looks, until ctx ends. What it misses the polling
// finds.
func (w *Worker) listen(ctx context.Context, s *schedule) {
	channels := w.queue.Nudges()
	shard := make(map[string]int, len(channels))
	for i, name := range channels {
		shard[name] = i
	}
	sub := w.rdb.Subscribe(ctx, channels...)
	unhook := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer unhook()
	for v := range sub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(nudgeCheck)) {
		switch m := v.(type) {
		case *redis.Subscription:
			// What was said before, or while the connection was broken, is lost.
			if i, ok := shard[m.Channel]; ok {
				s.soon(i, 0)
			}
		case *redis.Message:
			us, err := strconv.ParseInt(m.Payload, 10, 64)
			if i, ok := shard[m.Channel]; ok && err == nil && us >= 0 {
				s.soon(i, min(time.Duration(us)*time.Microsecond, w.interval()))
			}
		}
	}
}

// nudgeCheck is how often the connection that brings nudges is checked.
const nudgeCheck = 30 * time.Second

// examine has the set-up of Redis checked, once, and logs what is found. It
// stops nothing: what it finds may be meant so.
func (w *Worker) examine(ctx context.Context) {
	found, err := w.queue.CheckSetup(ctx)
	for _, f := range found {
		level := slog.LevelWarn
		if f.Severity == deferral.Problem {
			level = slog.LevelError
		}
		w.log.Log(ctx, level, f.Text, "check", f.Code)
	}
	if err != nil && ctx.Err() == nil {
		w.log.WarnContext(ctx, "the set-up of Redis could not be checked", "error", err)
	}
}
