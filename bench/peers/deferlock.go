package peers

import (
	"context"
	"log/slog"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/worker"

	"github.com/deferlock/deferlock/bench/load"
)

type ours struct {
	env    Env
	worker *worker.Worker
	writer *worker.Writer[load.Write]
}

func newDeferlock(e Env) (load.Peer, error) {
	// It would say in each round that the server keeps nothing on the disk. What
	// goes wrong with a write shows in the figures.
	silent := slog.New(slog.DiscardHandler)
	w, err := worker.New(e.Redis, worker.Config{Name: e.Name, LockTTL: lockLife, Concurrency: atOnce, Logger: silent})
	if err != nil {
		return nil, err
	}
	p := &ours{env: e, worker: w}
	p.writer, err = worker.Wrap(w, p.write, worker.Kind[load.Write]{
		Name:     "write",
		Resource: func(w load.Write) string { return w.Resource },
	})
	return p, err
}

func (p *ours) write(_ context.Context, w load.Write) error {
	p.env.Work.Do(w)
	return nil
}

// Do counts as refused what found the lock taken, although no attempt was made
// that could have been left out: the same script stored the write.
func (p *ours) Do(ctx context.Context, w load.Write) error {
	out, err := p.writer.Do(ctx, w)
	if out.Deferred && out.Why == deferral.Held {
		p.env.Refused.Add(1)
	}
	return err
}

// Put pushes w.
func (p *ours) Put(ctx context.Context, w load.Write) error {
	_, err := p.writer.Push(ctx, w, 0)
	return err
}

// Run is the worker's.
func (p *ours) Run(ctx context.Context) error { return p.worker.Run(ctx) }

// Step does one batch.
func (p *ours) Step(ctx context.Context) (int, error) { return p.worker.RunOnce(ctx) }
