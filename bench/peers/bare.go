package peers

import (
	"context"
	_ "embed"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
)

//go:embed release.lua
var releaseSource string

var releaseScript = redis.NewScript(releaseSource)

type bare struct {
	rdb     *redis.Client
	name    string
	work    *load.Work
	refused *atomic.Int64
}

func newBare(e Env) (load.Peer, error) { return &bare{e.Redis, e.Name, e.Work, e.Refused}, nil }

func (p *bare) Do(ctx context.Context, w load.Write) error {
	key, value := p.name+":lock:"+w.Resource, token()
	for {
		got, err := p.rdb.SetNX(ctx, key, value, lockLife).Result()
		if err != nil {
			return err
		}
		if got {
			break
		}
		p.refused.Add(1)
		if err := pause(ctx, retryAfter); err != nil {
			return err
		}
	}
	p.work.Do(w)
	return releaseScript.Run(ctx, p.rdb, []string{key}, value).Err()
}

func (p *bare) Run(ctx context.Context) error { return wait(ctx) }

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
