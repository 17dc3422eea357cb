package tune

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/deferlock/deferlock/worker"
)

// run is one point under one load, once.
type run struct {
	load  Load
	point Point
	name  string // the worker's: every run has its own queue
	rate  float64
	work  work

	source *source
	record *record
	writer *worker.Writer[Write]

	// room has a token for each write that is submitted and not yet done.
	room chan struct{}
}

// newRun makes a run; with a rate of 0 it is one at full load.
func newRun(s *Settings, p Point, rate float64, name string, w work) *run {
	warm := s.warmUp(p)
	to, most := time.Duration(0), s.Load.Outstanding
	if rate > 0 { // what waits for its lookback, and a second of a jam, must have room
		to, most = warm+s.Time, max(most, int(rate*(p.Lookback.Seconds()+1)))
	}
	return &run{
		load: s.Load, point: p, name: name, rate: rate, work: w,
		source: newSource(s.Load, rate, warm+s.Time, s.Seed),
		record: newRecord(warm, to),
		room:   make(chan struct{}, most),
	}
}

// result is what came of a run.
type result struct {
	Figures
	counts Counts
}

// Counts is what was submitted, and what came of it.
type Counts struct {
	Accepted int // writes for which Do or Push returned without an error
	Calls    int // of the function that returned without an error
	Effects  Effects
}

// do has the writers submit, waits until all that was accepted is done, and
// compares it with what took effect.
func (r *run) do(ctx context.Context, rdb redis.UniversalClient) (result, error) {
	w, writer, err := r.newWorker(rdb, r.point.Lookback)
	if err != nil {
		return result{}, err
	}
	r.writer = writer
	running, stop := context.WithCancel(ctx)
	defer stop()
	var runners errgroup.Group
	runners.Go(func() error { return w.Run(running) })
	r.source.begin = time.Now()
	err = r.submit(ctx)
	if err == nil && r.rate == 0 {
		err = r.hurry(running, rdb, &runners)
	}
	if err == nil {
		err = r.drained(ctx)
	}
	stop()
	if err = errors.Join(err, runners.Wait()); err != nil {
		return result{}, err
	}
	return r.result(ctx)
}

func (r *run) newWorker(rdb redis.UniversalClient, lookback time.Duration) (*worker.Worker, *worker.Writer[Write], error) {
	w, err := worker.New(rdb, worker.Config{
		Name: r.name, Batch: r.point.Batch, Lookback: lookback, DeferFailures: true,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	x, err := worker.WrapBatch(w, r.write, worker.Kind[Write]{
		Name:           "credit",
		Resource:       func(w Write) string { return w.Account },
		IdempotencyKey: func(_ context.Context, w Write) string { return w.key() },
	})
	return w, x, err
}

// hurry has what is left done without a lookback. What a setting can do is known
// when the last write is done, because a hot account may be far behind the others
// by then; and that time must not have a lookback in it for which nobody works.
func (r *run) hurry(ctx context.Context, rdb redis.UniversalClient, runners *errgroup.Group) error {
	w, _, err := r.newWorker(rdb, 0)
	if err == nil {
		runners.Go(func() error { return w.Run(ctx) })
	}
	return err
}

// write is the function given to WrapBatch.
func (r *run) write(ctx context.Context, ws []Write) error {
	if err := r.work.Transact(ctx, ws); err != nil {
		return err
	}
	for range r.record.commit(ws, time.Since(r.source.begin)) {
		<-r.room
	}
	return nil
}

// submit returns when the writers have submitted all they should.
func (r *run) submit(ctx context.Context) error {
	writers, wctx := errgroup.WithContext(ctx)
	for range r.load.Writers {
		writers.Go(func() error { return r.submitSome(wctx) })
	}
	return writers.Wait()
}

// drained waits until all that was accepted is done.
func (r *run) drained(ctx context.Context) error {
	// Whoever has all the room knows that nothing is left in it.
	ctx, cancel := context.WithTimeoutCause(ctx, r.point.Lookback+drainTime, errNotDrained)
	defer cancel()
	for range cap(r.room) {
		if err := r.enter(ctx); err != nil {
			return err
		}
	}
	return nil
}

// drainTime is how long what was accepted may take to be done when nothing more
// is submitted.
const drainTime = 2 * time.Minute

var errNotDrained = fmt.Errorf("what was accepted was not done in %v", drainTime)

// enter waits for room for one more write.
func (r *run) enter(ctx context.Context) error {
	select {
	case r.room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// submitSome is one writer. A write that is accepted has its place in the room
// until it is done.
func (r *run) submitSome(ctx context.Context) error {
	for {
		if err := r.enter(ctx); err != nil {
			return err
		}
		w, ok := r.source.next()
		if !ok {
			<-r.room
			return nil
		}
		if early := w.Called - time.Since(r.source.begin); early > 0 {
			if err := pause(ctx, early); err != nil {
				return err
			}
		}
		if err := r.submitSurely(ctx, w); err != nil {
			return fmt.Errorf("a write was not accepted: %w", err)
		}
	}
}

// submitSurely submits again what was not accepted, or only perhaps: under the
// same key that is safe. A machine that stands still for a while can cost a write
// its lock.
func (r *run) submitSurely(ctx context.Context, w Write) error {
	const most, rest = 5, 20 * time.Millisecond
	for n := 1; ; n++ {
		err := r.submitOne(ctx, w)
		if err == nil || n == most {
			return err
		}
		if pause(ctx, rest) != nil {
			return err
		}
	}
}

func (r *run) submitOne(ctx context.Context, w Write) error {
	if r.load.Push {
		_, err := r.writer.Push(ctx, w, 0)
		if err == nil {
			r.record.accept(w, true)
		}
		return err
	}
	out, err := r.writer.Do(ctx, w)
	if err == nil {
		r.record.accept(w, out.Deferred)
	}
	return err
}

// result compares what was accepted with what took effect.
func (r *run) result(ctx context.Context) (result, error) {
	effects, err := r.work.Effects(ctx)
	if err != nil {
		return result{}, err
	}
	n := r.record.accepted
	if effects.Writes != n || effects.Different != n {
		return result{}, fmt.Errorf("%d writes were accepted; %d took effect, %d of them different ones", n, effects.Writes, effects.Different)
	}
	return result{r.record.figures(), Counts{Accepted: n, Calls: r.record.transactions, Effects: effects}}, nil
}
