package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
	"github.com/deferlock/deferlock/bench/report"
)

// hotLane and coldLane name the resource of the ith write that waits: all wait
// for one, or each for its own.
func hotLane(int) string    { return "account-0" }
func coldLane(i int) string { return "account-" + strconv.Itoa(i) }

// lanes are the two shapes of what waits: all in one, or each in its own.
var lanes = []struct {
	name string
	of   func(int) string
}{{"one lane", hotLane}, {"cold lanes", coldLane}}

// putters is how many goroutines put writes aside.
const putters = 64

// put puts n writes aside, the first of which is number from.
func put(ctx context.Context, p load.Keeper, of func(int) string, from, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range putters {
		all.Go(func() {
			for i := from + int(next.Add(1)) - 1; i < from+n && ctx.Err() == nil; i = from + int(next.Add(1)) - 1 {
				if err := p.Put(ctx, load.Write{Seq: i, Resource: of(i), Note: load.Note}); err != nil {
					cancel(fmt.Errorf("put write %d aside: %w", i, err))
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// memoryWorkloads measure what waits. Nobody runs it.
func memoryWorkloads(z size) []workload {
	var all []workload
	for _, lane := range lanes {
		all = append(all, workload{
			Group: "memory", Name: lane.name, Base: peers.Kaito.Name, Once: true,
			About: fmt.Sprintf("What Redis needs for a write that waits, its payload of some 130 bytes included: all for one resource, or each for its own; %s wait.", report.Number(float64(z.memory))),
			Cases: each(keeping, func(ctx context.Context, b *bench, k peers.Kind) (measure.Figures, error) {
				return b.memory(ctx, k, lane.of, z.memory)
			}),
		})
	}
	return all
}

func (b *bench) memory(ctx context.Context, k peers.Kind, of func(int) string, n int) (f measure.Figures, err error) {
	defer func() { err = errors.Join(err, b.empty(ctx, 0)) }()
	// Once to load the scripts, which are not the writes'.
	if _, err := b.memoryOf(ctx, k, of, 1); err != nil {
		return nil, err
	}
	before, err := b.memoryOf(ctx, k, of, 0)
	if err != nil {
		return nil, err
	}
	after, err := b.memoryOf(ctx, k, of, n)
	if err != nil {
		return nil, err
	}
	return measure.Figures{measure.Bytes: float64(after-before) / float64(n)}, nil
}

// memoryOf is what Redis needs with n writes and no connection but the one that
// asks.
func (b *bench) memoryOf(ctx context.Context, k peers.Kind, of func(int) string, n int) (bytes int64, err error) {
	if err := b.empty(ctx, 0); err != nil {
		return 0, err
	}
	s, err := b.open(k, 0, 0)
	if err != nil {
		return 0, err
	}
	p, err := keeper(s.peer)
	if err == nil {
		err = put(ctx, p, of, 0, n)
	}
	if err := errors.Join(err, s.close()); err != nil {
		return 0, err
	}
	for began := time.Now(); ; {
		server, err := measure.ReadServer(ctx, b.admin(0))
		if err != nil {
			return 0, err
		}
		// Others may use a Redis that was there before.
		if server.Clients == 1 || time.Since(began) > 2*time.Second {
			return server.Memory, nil
		}
		if err := settle(ctx); err != nil {
			return 0, err
		}
	}
}

func keeper(p load.Peer) (load.Keeper, error) {
	if k, ok := p.(load.Keeper); ok {
		return k, nil
	}
	return nil, errors.New("this peer cannot put a write aside")
}

// idleWorkload measures what running costs when there is nothing to do.
func idleWorkload(z size) workload {
	return workload{
		Group: "idle", Name: "idle", Base: peers.Kaito.Name, Once: true,
		About: fmt.Sprintf("One process runs for %v, nobody writes and nothing waits.", z.idle),
		Cases: each([]peers.Kind{peers.Kaito, peers.Kaito3, peers.Asynq, peers.Delayqueue, peers.Deferlock},
			func(ctx context.Context, b *bench, k peers.Kind) (measure.Figures, error) {
				return b.idle(ctx, k, z.idle)
			}),
	}
}

func (b *bench) idle(ctx context.Context, k peers.Kind, d time.Duration) (f measure.Figures, err error) {
	s, err := b.open(k, 0, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.empty(ctx), s.close()) }()
	s.wire.CountSent(s.rdb)
	started := load.Start(ctx, s.peer)
	defer func() { err = errors.Join(err, started.Stop()) }()
	if err := pause(ctx, min(d, time.Second)); err != nil { // what starting costs is over
		return nil, err
	}
	before, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	sent := s.wire.Sent()
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return nil, err
	}
	after, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	seconds := time.Since(began).Seconds()
	return measure.Figures{
		measure.Sent:     float64(s.wire.Sent()-sent) / seconds,
		measure.Executed: float64(after.server.Since(before.server).Commands) / seconds,
	}, nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
