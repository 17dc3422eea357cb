package peers

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/hdt3213/delayqueue"

	"github.com/deferlock/deferlock/bench/load"
)

// delayLook is how often the delay queue looks for messages. Its default, a
// second, is for messages that are delayed.
const delayLook = 10 * time.Millisecond

// delayed has every write done by a consumer of HDT3213/delayqueue.
type delayed struct {
	env   Env
	queue *delayqueue.DelayQueue
	locks *redislock.Client
}

func newDelayqueue(e Env) (load.Peer, error) {
	p := &delayed{env: e, locks: redislock.New(e.Redis)}
	p.queue = delayqueue.NewQueue(e.Name, e.Redis, p.handle).
		WithConcurrent(atOnce).
		WithFetchInterval(delayLook).
		WithMaxConsumeDuration(time.Minute).
		WithDefaultRetryCount(math.MaxInt32). // a conflict counts as one
		WithLogger(log.New(io.Discard, "", 0))
	return p, nil
}

func (p *delayed) Do(ctx context.Context, w load.Write) error { return p.Put(ctx, w) }

// Put sends w without a delay. The library takes no context.
func (p *delayed) Put(ctx context.Context, w load.Write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	payload, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return p.queue.SendDelayMsg(string(payload), 0)
}

// Run consumes.
func (p *delayed) Run(ctx context.Context) error {
	done := p.queue.StartConsume()
	<-ctx.Done()
	p.queue.StopConsume()
	<-done
	return nil
}

// handle says whether the message is done with; if not, it comes again.
func (p *delayed) handle(payload string) bool {
	var w load.Write
	if json.Unmarshal([]byte(payload), &w) != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockLife)
	defer cancel()
	l, err := p.locks.Obtain(ctx, p.env.Name+":lock:"+w.Resource, lockLife, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		p.env.Refused.Add(1)
	}
	if err != nil {
		return false
	}
	p.env.Work.Do(w)
	_ = l.Release(ctx) // it has run; the lock expires
	return true
}
