package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// child is one of several processes under a load. It says when it is warm, and
// then does what it is told: go, count, stop.
func child(ctx context.Context, told string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(told), &j); err != nil {
		return fmt.Errorf("%s: %w", childKey, err)
	}
	i := slices.IndexFunc(peers.All, func(k peers.Kind) bool { return k.Name == j.Peer })
	if i < 0 {
		return fmt.Errorf("%s: no peer is called %q", childKey, j.Peer)
	}
	srv := server{options: redis.Options{Addr: j.Addr, Username: j.User, Password: j.Secret, DB: j.DB}}
	admin := srv.client(0, 1)
	defer admin.Close()
	s, err := open(peers.All[i], srv.optionsOf(0, j.Pool), admin, load.NewWork(j.Load.Takes, measure.NewRecorder(0, 0)))
	if err != nil {
		return err
	}
	defer s.close()
	started := load.Start(ctx, s.peer)
	defer func() { _ = started.Stop() }() // told below, unless something else went wrong before
	if err := s.warmTogether(ctx, j.Load); err != nil {
		return err
	}
	report := gob.NewEncoder(out)
	if err := report.Encode(progress{}); err != nil {
		return err
	}
	d, err := s.obey(ctx, j, bufio.NewScanner(in), report, started)
	if err != nil {
		return err
	}
	return report.Encode(d)
}

// warmTogether is warm for one of several processes: what it hands over may be
// done by any of them, so it waits for none of it. Each has resources of its own.
func (s *session) warmTogether(ctx context.Context, l load.Load) error {
	l = l.Warmup()
	l.Prepare()(ctx, s.peer, measure.NewRecorder(l.Most, 0))
	return settle(ctx)
}

// obey does what the parent says until it says stop. From there on nobody
// writes to the records.
func (s *session) obey(ctx context.Context, j job, in *bufio.Scanner, report *gob.Encoder, started *load.Started) (done, error) {
	rec := measure.NewRecorder(j.Load.Most, 2*processes*j.Load.Most) // it may do those of all
	s.work.Record(rec)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	var busy atomic.Bool
	submit := j.Load.Prepare()
	process, trips, refused := measure.ReadProcess(), s.wire.RoundTrips(), s.refused.Load()
	for in.Scan() {
		switch in.Text() {
		case "go":
			busy.Store(true)
			writing.Go(func() {
				defer busy.Store(false)
				submit(ctx, s.peer, rec)
			})
		case "count":
			p := progress{Busy: busy.Load(), Done: rec.Count()}
			if !p.Busy {
				p.Handed = len(rec.Records().Submits)
			}
			if err := report.Encode(p); err != nil {
				return done{}, err
			}
		case "stop":
			cancel()
			writing.Wait()
			now := measure.ReadProcess()
			d := done{
				RoundTrips: s.wire.RoundTrips() - trips, Refused: s.refused.Load() - refused,
				Allocations: now.Allocations - process.Allocations, CPU: now.CPU - process.CPU,
			}
			err := started.Stop()
			d.Records = rec.Records()
			return d, err
		}
	}
	return done{}, fmt.Errorf("the process that started this one is gone: %w", io.ErrUnexpectedEOF)
}
