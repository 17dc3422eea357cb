package peers

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
)

//go:embed pop.lua
var popSource string

var popScript = redis.NewScript(popSource)

const (
	popAtOnce = 5
	popRest   = 10 * time.Millisecond
)

// kaito is the plain recipe: a write that finds its lock taken is pushed into a
// queue, its payload in a String and the String's key in a ZSET by the time of
// the push; a loop pops what is old enough and tries it again.
type kaito struct {
	env      Env
	locks    *redislock.Client
	previous time.Duration
}

func newKaito(previous time.Duration) func(Env) (load.Peer, error) {
	return func(e Env) (load.Peer, error) {
		return &kaito{env: e, locks: redislock.New(e.Redis), previous: previous}, nil
	}
}

func (p *kaito) Do(ctx context.Context, w load.Write) error {
	l, err := p.locks.Obtain(ctx, p.env.Name+":lock:"+w.Resource, lockLife, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		p.env.Refused.Add(1)
		return p.Put(ctx, w)
	}
	if err != nil {
		return err
	}
	p.env.Work.Do(w)
	return l.Release(ctx)
}

// Put pushes w, in one round trip.
func (p *kaito) Put(ctx context.Context, w load.Write) error {
	payload, err := json.Marshal(w)
	if err != nil {
		return err
	}
	key := p.env.Name + ":" + uuid.NewString()
	_, err = p.env.Redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, key, payload, 0)
		pipe.ZAdd(ctx, p.queue(), redis.Z{Score: float64(time.Now().UnixMicro()), Member: key})
		return nil
	})
	return err
}

func (p *kaito) queue() string { return p.env.Name + ":queue" }

// Run pops and has what it popped tried by other goroutines, so that one slow
// write does not hold up the others.
func (p *kaito) Run(ctx context.Context) error {
	var trying sync.WaitGroup
	defer trying.Wait()
	free := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
		writes, err := p.pop(ctx)
		if err != nil || len(writes) == 0 {
			_ = pause(ctx, popRest) // the loop looks at ctx
			continue
		}
		for _, w := range writes {
			free <- struct{}{}
			trying.Go(func() {
				defer func() { <-free }()
				// What was popped is in nobody's hands but ours, so it is tried
				// even if ctx has ended; if that fails it is lost.
				_ = p.Do(context.WithoutCancel(ctx), w)
			})
		}
	}
	return nil
}

// Step pops and tries what it popped, one after the other.
func (p *kaito) Step(ctx context.Context) (int, error) {
	writes, err := p.pop(ctx)
	for _, w := range writes {
		if err := p.Do(ctx, w); err != nil {
			return 0, err
		}
	}
	return len(writes), err
}

func (p *kaito) pop(ctx context.Context) ([]load.Write, error) {
	before := strconv.FormatInt(time.Now().Add(-p.previous).UnixMicro(), 10)
	payloads, err := popScript.Run(ctx, p.env.Redis, []string{p.queue()}, before, popAtOnce).StringSlice()
	if err != nil {
		return nil, err
	}
	writes := make([]load.Write, len(payloads))
	for i, payload := range payloads {
		if err := json.Unmarshal([]byte(payload), &writes[i]); err != nil {
			return nil, err
		}
	}
	return writes, nil
}
