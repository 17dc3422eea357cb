package peers

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"

	"github.com/deferlock/deferlock/bench/load"
)

type plain struct {
	locks *redislock.Client
	name  string
	work  *load.Work
	again counted
}

func newRedislock(e Env) (load.Peer, error) {
	return &plain{redislock.New(e.Redis), e.Name, e.Work, counted{e.Refused}}, nil
}

func (p *plain) Do(ctx context.Context, w load.Write) error {
	l, err := p.locks.Obtain(ctx, p.name+":lock:"+w.Resource, lockLife, &redislock.Options{RetryStrategy: p.again})
	if err != nil {
		return err
	}
	p.work.Do(w)
	return l.Release(ctx)
}

func (p *plain) Run(ctx context.Context) error { return wait(ctx) }

// counted is a retry strategy that counts how often it is asked: once for each
// attempt that found the lock taken.
type counted struct{ refused *atomic.Int64 }

func (c counted) NextBackoff() time.Duration {
	c.refused.Add(1)
	return retryAfter
}
