package peers

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
)

type ping struct {
	rdb  *redis.Client
	work *load.Work
}

func newPing(e Env) (load.Peer, error) { return &ping{e.Redis, e.Work}, nil }

func (p *ping) Do(ctx context.Context, w load.Write) error {
	if err := p.rdb.Ping(ctx).Err(); err != nil {
		return err
	}
	p.work.Do(w)
	return p.rdb.Ping(ctx).Err()
}

func (p *ping) Run(ctx context.Context) error { return wait(ctx) }

// wait is the Run of a peer that leaves nothing.
func wait(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
