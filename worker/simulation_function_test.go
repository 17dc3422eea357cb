package worker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/deferlock/deferlock/internal/history"
	"github.com/deferlock/deferlock/worker"
)

var (
	errStale = errors.New("a later holder has written")
	errDrawn = errors.New("drawn")
	errDied  = errors.New("the process has died")
)

// database is what package pgfence makes of Postgres: it refuses a fence smaller
// than one it has seen, and does no write twice.
type database struct {
	mu       sync.Mutex
	greatest map[string]int64
	applied  map[history.Ref]bool
	effects  []history.Effect
}

func newDatabase() *database {
	return &database{greatest: map[string]int64{}, applied: map[history.Ref]bool{}}
}

// write applies some writes of one resource in one transaction. When it refuses
// them it returns the fence it has seen.
func (db *database) write(fence int64, effects []history.Effect) (seen int64, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	resource := effects[0].Resource
	if fence < db.greatest[resource] {
		return db.greatest[resource], errStale
	}
	db.greatest[resource] = fence
	for _, e := range effects {
		if db.applied[e.Ref] {
			continue
		}
		db.applied[e.Ref] = true
		e.Fence = fence
		db.effects = append(db.effects, e)
	}
	return fence, nil
}

func (db *database) has(ref history.Ref) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.applied[ref]
}

// course is what is drawn for one call of a function.
type course struct {
	before, after time.Duration // around the effect
	deaf          bool          // does not listen to its context
	fail          func(error) error
	late          bool // fails after the effect
	part          int  // of a batch, in percent: what takes effect before it fails
	exact         bool // and says so
}

// courseOf draws the nth call for a write.
func (w *world) courseOf(ref history.Ref, n int) course {
	rng := w.drawn(ref.ID+" of "+ref.Resource, n)
	c := course{
		before: w.plan.work(rng), after: w.plan.work(rng) / 4,
		deaf: rng.IntN(3) == 0, late: rng.IntN(4) == 0, part: rng.IntN(100), exact: rng.IntN(2) == 0,
	}
	rest := time.Duration(rng.Int64N(int64(2 * time.Second)))
	mode := rng.IntN(16)
	if n >= w.plan.failures[ref] {
		return c
	}
	switch mode {
	case 0:
		c.fail = worker.Permanent
	case 1, 2:
		c.fail = worker.Busy
	case 3, 4:
		c.fail = func(err error) error { return worker.RetryAfter(err, rest) }
	case 5:
		c.fail = func(err error) error { panic(err) }
	case 6:
		c.fail = func(error) error { runtime.Goexit(); return nil }
	default:
		c.fail = func(err error) error { return err }
	}
	return c
}

func (p *process) one(ctx context.Context, it item) error {
	return p.perform(ctx, []item{it}, false)
}

func (p *process) many(ctx context.Context, its []item) error {
	return p.perform(ctx, its, true)
}

// last writes the newest of a batch, in the place of all.
func (p *process) last(ctx context.Context, it item) error {
	in, _ := worker.FromContext(ctx)
	if !in.Coalesced {
		return p.perform(ctx, []item{it}, false)
	}
	var its []item
	for _, b := range in.Batch {
		its = append(its, p.world.plan.items[history.Ref{Resource: b.Resource, ID: b.ID}])
	}
	if its[len(its)-1] != it {
		p.world.problem("%s: %v stands for a batch that ends with %v", p.name, it, its[len(its)-1])
	}
	return p.perform(ctx, its, false)
}

// perform is the function of every kind. In parts it may take effect for the
// first of its items only.
func (p *process) perform(ctx context.Context, its []item, parts bool) (err error) {
	w := p.world
	c := w.called(p, ctx, its)
	done := 0 // so many are done, whatever the error
	defer func() { w.returned(c, done) }()
	how := w.courseOf(its[0].ref(), c.nth)
	if !p.stay(ctx, how.before, how.deaf) {
		return p.cut(ctx)
	}
	n := len(its)
	if how.fail != nil && !how.late {
		if parts {
			n = len(its) * how.part / 100
		}
		if !parts || n == 0 {
			return how.fail(errDrawn)
		}
	}
	if err := p.write(ctx, its[:n]); err != nil {
		return err
	}
	if !p.stay(ctx, how.after, how.deaf) {
		return p.cut(ctx)
	}
	switch {
	case how.fail == nil:
		done = n
		return nil
	case parts && how.exact:
		done = n
		return worker.Applied(n, how.fail(errDrawn))
	}
	return how.fail(errDrawn)
}

// cut is the error of a function that was interrupted.
func (p *process) cut(ctx context.Context) error {
	if p.isDead() {
		return errDied
	}
	return context.Cause(ctx)
}

// write takes the items to the database, as package pgfence does: a holder that
// does have its lock lifts the fence over what the database has seen.
func (p *process) write(ctx context.Context, its []item) error {
	in, _ := worker.FromContext(ctx)
	var effects []history.Effect
	for _, it := range its {
		effects = append(effects, history.Effect{Ref: it.ref(), Payload: payloadOf(it.N)})
	}
	fence := in.Fence
	for {
		seen, err := p.world.db.write(fence, effects)
		if err == nil {
			p.world.say("%s wrote %v with fence %d", p.name, its, fence)
			return nil
		}
		p.world.saw("stale")
		lifted, lerr := worker.LiftFence(ctx, seen)
		if lerr != nil || p.isDead() {
			return errors.Join(err, lerr)
		}
		p.world.saw("lifted")
		p.world.say("%s lifted its fence from %d to %d", p.name, fence, lifted)
		fence = lifted
	}
}
