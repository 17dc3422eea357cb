package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// keyName is what the keys of every peer begin with.
const keyName = "bench"

// session is one peer with an empty database and a client of its own.
type session struct {
	kind    peers.Kind
	peer    load.Peer
	work    *load.Work
	refused atomic.Int64
	wire    measure.Wire
	rdb     *redis.Client
	admin   *redis.Client // what asks and empties, and is not counted
}

// open makes a session whose client has opts. admin is a client of the same
// database.
func open(k peers.Kind, opts redis.Options, admin *redis.Client, work *load.Work) (*session, error) {
	s := &session{kind: k, work: work, admin: admin}
	s.rdb = s.wire.Client(opts)
	var err error
	s.peer, err = k.New(peers.Env{Redis: s.rdb, Name: keyName, Work: s.work, Refused: &s.refused})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", k.Name, err), s.rdb.Close())
	}
	return s, nil
}

// empty empties the session's database.
func (s *session) empty(ctx context.Context) error {
	return s.admin.FlushDB(context.WithoutCancel(ctx)).Err()
}

func (s *session) close() error { return s.rdb.Close() }

// warm hands over some writes that do not count and waits for them, so that
// connections are open and scripts loaded.
func (s *session) warm(ctx context.Context, l load.Load) error {
	l = l.Warmup()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	l.Prepare()(ctx, s.peer, measure.NewRecorder(l.Most, 0))
	if !load.Await(ctx, s.work.Warm, l.Most) {
		return fmt.Errorf("%s: only %d of %d writes were done to warm up: %w", s.kind.Name, s.work.Warm(), l.Most, context.Cause(ctx))
	}
	return settle(ctx)
}

// settle gives what was started a moment to come to rest.
func settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

// usage is what was used up to one moment, by everybody.
type usage struct {
	server              measure.Server
	process             measure.Process
	roundTrips, refused int64
}

func (s *session) usage(ctx context.Context) (usage, error) {
	server, err := measure.ReadServer(ctx, s.admin)
	return usage{server, measure.ReadProcess(), s.wire.RoundTrips(), s.refused.Load()}, err
}

// since turns what was used since an earlier moment into figures per write.
func (u usage) since(before usage, writes float64) measure.Figures {
	server := u.server.Since(before.server)
	f := measure.Figures{
		measure.Commands:    float64(server.Commands) / writes,
		measure.RedisCPU:    float64(server.CPU.Microseconds()) / writes,
		measure.RoundTrips:  float64(u.roundTrips-before.roundTrips) / writes,
		measure.Refused:     float64(u.refused-before.refused) / writes,
		measure.Allocations: float64(u.process.Allocations-before.process.Allocations) / writes,
	}
	for name, n := range server.Calls {
		f[measure.CallsOf(name)] = float64(n) / writes
	}
	if u.process.CPU > 0 {
		f[measure.ClientCPU] = float64((u.process.CPU - before.process.CPU).Microseconds()) / writes
	}
	return f
}

// round puts the peer under l and returns what it did and, per write, what that
// took. The peer's Run goes on meanwhile, as it does in its users' processes.
func (s *session) round(ctx context.Context, l load.Load) (f measure.Figures, err error) {
	if err := s.empty(ctx); err != nil {
		return nil, err
	}
	started := load.Start(ctx, s.peer)
	defer func() { err = errors.Join(err, started.Stop(), s.empty(ctx)) }()
	if err := s.warm(ctx, l); err != nil {
		return nil, err
	}
	submit, rec := l.Prepare(), measure.NewRecorder(l.Most, 2*l.Most)
	s.work.Record(rec)
	runtime.GC() // what others left is not theirs to clear up
	before, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, l.Patience)
	defer cancel()
	began := measure.Now()
	submit(limited, s.peer, rec)
	load.Await(limited, rec.Count, len(rec.Records().Submits)) // if not, they count as unfinished
	ended := measure.Now()
	after, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := started.Stop(); err != nil { // nobody writes to rec from here on
		return nil, err
	}
	return s.figures(rec.Records(), l, began, ended, before, after), nil
}

// figures puts together what was recorded and what was used.
func (s *session) figures(r measure.Records, l load.Load, began, ended int64, before, after usage) measure.Figures {
	f := r.Figures(began, ended)
	if l.Resources == 0 { // what then waits for a resource waits for its peer
		for _, m := range []measure.Metric{measure.HandoverP50, measure.HandoverP99, measure.HandoverMax} {
			delete(f, m)
		}
	}
	if l.Resources == 1 && l.Takes > 0 {
		f[measure.Bound] = r.Busy(began)
	}
	if f[measure.Done] > 0 {
		maps.Copy(f, after.since(before, f[measure.Done]))
	}
	return f
}
