package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/history"
	"github.com/deferlock/deferlock/worker"
)

// item is the value that all kinds of a simulation write.
type item struct {
	ID, Resource string
	N            int // the payload
}

func (it item) ref() history.Ref { return history.Ref{Resource: it.Resource, ID: it.ID} }

func payloadOf(n int) string { return strconv.Itoa(n) }

// process is one process of a simulation: a client, a worker, its Run and the
// calls of its functions.
type process struct {
	world   *world
	name    string
	rdb     *redis.Client
	worker  *worker.Worker
	writers map[string]*worker.Writer[item]

	gone    chan struct{} // closed when it dies
	stop    context.CancelFunc
	stopped chan struct{} // closed when its Run has ended

	// Guarded by world.mu:
	links       []*link
	dead        bool
	pausedUntil time.Time
	faults      int // that were met so far
}

// newProcess starts a process, without its Run.
func (w *world) newProcess() *process {
	p := &process{world: w, name: "p" + strconv.Itoa(len(w.all)), gone: make(chan struct{})}
	w.all = append(w.all, p)
	p.rdb = w.server.ClientWith(w.t, func(o *redis.Options) {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) { return w.dial(p) }
		o.PoolSize = 1000 // nobody waits for a connection, which would be a question of who came first
		o.ReadTimeout = w.plan.readTimeout
		o.MinRetryBackoff, o.MaxRetryBackoff = -1, -1 // or it draws
	})
	cfg := w.plan.cfg
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Observe = p.observe
	var err error
	if p.worker, err = worker.New(p.rdb, cfg); err != nil {
		w.t.Fatal(err)
	}
	p.writers = map[string]*worker.Writer[item]{}
	key := func(_ context.Context, it item) string { return it.ID }
	resource := func(it item) string { return it.Resource }
	for _, name := range kinds {
		k := worker.Kind[item]{Name: name, Resource: resource, IdempotencyKey: key}
		var x *worker.Writer[item]
		switch name {
		case "one":
			x, err = worker.Wrap(p.worker, p.one, k)
		case "many":
			x, err = worker.WrapBatch(p.worker, p.many, k)
		case "last":
			x, err = worker.WrapBatch(p.worker, worker.LastWins(p.last), k)
		case "alone":
			k.Resource = worker.Alone[item]
			x, err = worker.Wrap(p.worker, p.one, k)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		p.writers[name] = x
	}
	w.say("%s starts", p.name)
	return p
}

// kinds are the kinds of writes that every process knows.
var kinds = []string{"one", "many", "last", "alone"}

// start begins the process's Run, unless it is under way.
func (p *process) start() {
	w := p.world
	if p.stop != nil || p.isDead() || w.over {
		return
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	stopped := make(chan struct{})
	p.stop, p.stopped = cancel, stopped
	w.say("%s runs", p.name)
	w.working(1)
	go func() {
		defer w.working(-1)
		defer close(stopped)
		err := p.run(ctx)
		if !p.isDead() {
			w.say("%s: Run ended: %s", p.name, nameOf(err))
			if err != nil && !errors.Is(err, worker.ErrAbandoned) {
				w.problem("%s: Run: %v", p.name, err)
			}
		}
	}()
}

// run is Run, or a loop that does the same with RunOnce.
func (p *process) run(ctx context.Context) error {
	if !p.world.plan.once {
		return p.worker.Run(ctx)
	}
	for n := 0; ctx.Err() == nil; n++ {
		_, _ = p.worker.RunOnce(ctx)
		t := time.NewTimer(100*time.Millisecond + time.Duration(p.world.drawn(p.name, n).IntN(1e6)))
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return nil
}

// end asks the process's Run to stop. Another may be started when it has.
func (p *process) end() {
	if p.stop != nil {
		p.world.say("%s is asked to stop", p.name)
		p.stop()
	}
}

// ended tells whether another Run may be started.
func (p *process) ended() bool {
	select {
	case <-p.stopped:
		p.stop = nil
		return true
	default:
		return p.stop == nil
	}
}

// kill ends the process as kill -9 does. What it had sent still arrives.
func (p *process) kill() {
	w := p.world
	w.mu.Lock()
	w.sayLocked("%s is killed", p.name)
	for _, c := range w.records.calls {
		if c.process == p {
			c.lostLocked()
		}
	}
	p.dead = true
	for len(p.links) > 0 {
		p.links[0].cutLocked()
	}
	w.mu.Unlock()
	close(p.gone)
	p.end()
}

func (p *process) isDead() bool {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.dead
}

// pause stops the process for a time: nothing reaches it, nothing leaves it, and
// its functions do not go on.
func (p *process) pause(d time.Duration) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sayLocked("%s is paused for %v", p.name, d)
	p.pausedUntil = time.Now().Add(d)
	p.faults++
}

// stay lets time pass in a function. It returns false when the process has died,
// or when ctx has ended and the function listens to it.
func (p *process) stay(ctx context.Context, d time.Duration, deaf bool) bool {
	heard := ctx.Done()
	if deaf {
		heard = nil
	}
	until := time.Now().Add(d)
	for {
		t := time.NewTimer(time.Until(until))
		select {
		case <-t.C:
		case <-heard:
			heard = nil
		case <-p.gone:
		}
		t.Stop()
		p.world.mu.Lock()
		dead, paused := p.dead, p.pausedUntil
		p.world.mu.Unlock()
		switch {
		case dead:
			return false
		case time.Now().Before(paused):
			until = paused.Add(d % time.Millisecond)
		default:
			return deaf || ctx.Err() == nil
		}
	}
}

// submission is one write a plan has submitted.
type submission struct {
	item
	kind     string
	push     bool
	delay    time.Duration
	patience time.Duration // of the caller's context; 0: for ever
	repeats  int           // after an unknown outcome
}

// submit submits a write, in a goroutine of the process.
func (p *process) submit(s submission) {
	p.world.working(1)
	go func() {
		defer p.world.working(-1)
		ctx, cancel := context.WithCancel(p.world.t.Context())
		defer cancel()
		if s.patience > 0 {
			var done context.CancelFunc
			ctx, done = context.WithTimeout(ctx, s.patience)
			defer done()
		}
		for n := 0; n <= s.repeats; n++ {
			if !p.submitOnce(ctx, s) || !p.stay(ctx, time.Duration(p.world.drawn("again "+s.ID, n).IntN(1e9)), false) {
				return
			}
		}
	}()
}

// submitOnce reports whether the caller should call again.
func (p *process) submitOnce(ctx context.Context, s submission) (again bool) {
	w := p.world
	r := w.submitted(p, s)
	var out worker.Outcome
	err := errors.New("the function ended the goroutine")
	defer func() {
		again = w.answered(r, out, err)
	}()
	if s.push {
		_, err = p.writers[s.kind].Push(ctx, s.item, s.delay)
		return
	}
	out, err = p.writers[s.kind].Do(ctx, s.item)
	return
}

// observe notes what the worker says of itself.
func (p *process) observe(e worker.Event) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead {
		return
	}
	w.sayLocked("%s %s %q %q direct=%v attempt=%d batch=%d why=%v ahead=%d rest=%v: %s",
		p.name, e.Type, e.Resource, e.ID, e.Direct, e.Attempt, e.Batch, e.Why, e.Ahead, e.Rest, nameOf(e.Err))
	w.records.seen[string(e.Type)]++
	ref := refOf(e.Resource, e.ID)
	switch {
	case e.Type == worker.EventTorn:
		w.records.problem("%s: write %s is torn", p.name, ref)
	case e.Type == worker.EventEnded && e.Err != nil && e.Batch == 1 && w.plan.cfg.OnFailure == worker.WriteStepsAside:
		// It may die before it hears that the write has stepped aside.
		w.records.aside[ref] = true
	}
	if e.Type == worker.EventRetried || e.Type == worker.EventReturned || e.Type == worker.EventDeferred && e.Why == deferral.AtHead {
		w.records.rests[ref] = append(w.records.rests[ref], rest{time.Now(), time.Now().Add(e.Rest), e.Direct})
	}
}
