package peers

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/hibiken/asynq"

	"github.com/deferlock/deferlock/bench/load"
)

// How often asynq looks. Its defaults, a second and five, are for fewer and
// larger tasks.
const (
	asynqTasks   = 10 * time.Millisecond
	asynqRetries = 100 * time.Millisecond
)

// errTaken is a conflict, which asynq is told not to count as a failure.
var errTaken = errors.New("peers: the lock is taken")

// queued has every write done by an asynq task.
type queued struct {
	env    Env
	client *asynq.Client
	locks  *redislock.Client
}

func newAsynq(e Env) (load.Peer, error) {
	return &queued{env: e, client: asynq.NewClientFromRedisClient(e.Redis), locks: redislock.New(e.Redis)}, nil
}

func (p *queued) Do(ctx context.Context, w load.Write) error { return p.Put(ctx, w) }

// Put enqueues w.
func (p *queued) Put(ctx context.Context, w load.Write) error {
	payload, err := json.Marshal(w)
	if err != nil {
		return err
	}
	_, err = p.client.EnqueueContext(ctx, asynq.NewTask("write", payload),
		asynq.Queue(p.env.Name), asynq.MaxRetry(math.MaxInt32))
	return err
}

// Run is an asynq server.
func (p *queued) Run(ctx context.Context) error {
	server := asynq.NewServerFromRedisClient(p.env.Redis, asynq.Config{
		Concurrency:              atOnce,
		Queues:                   map[string]int{p.env.Name: 1},
		TaskCheckInterval:        asynqTasks,
		DelayedTaskCheckInterval: asynqRetries,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		IsFailure:                func(err error) bool { return !errors.Is(err, errTaken) },
		ShutdownTimeout:          time.Second,
		LogLevel:                 asynq.FatalLevel,
	})
	if err := server.Start(asynq.HandlerFunc(p.handle)); err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

func (p *queued) handle(ctx context.Context, t *asynq.Task) error {
	var w load.Write
	if err := json.Unmarshal(t.Payload(), &w); err != nil {
		return err
	}
	l, err := p.locks.Obtain(ctx, p.env.Name+":lock:"+w.Resource, lockLife, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		p.env.Refused.Add(1)
		return errTaken
	}
	if err != nil {
		return err
	}
	p.env.Work.Do(w)
	return l.Release(ctx)
}
