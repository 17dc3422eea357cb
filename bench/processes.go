package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// processes is how many processes write in the workloads of several.
const processes = 4

// processWorkloads have writers in several processes, all started from this
// program's own file.
func processWorkloads(z size) []workload {
	kinds := []peers.Kind{peers.Bare, peers.Redislock, peers.Kaito, peers.Asynq, peers.Delayqueue, peers.Deferlock}
	return []workload{{
		Group: "processes", Fewer: true, Name: "uncontended", Base: peers.Redislock.Name,
		About: fmt.Sprintf("%d processes with 16 writers each, resources of their own, the work takes no time.", processes),
		Cases: each(kinds, many(load.Load{Writers: 16, For: z.submit, Most: most, Patience: z.submit + z.patience})),
	}, {
		Group: "processes", Fewer: true, Name: "hot", Base: peers.Redislock.Name,
		About: fmt.Sprintf("%d processes with 4 writers each hand over %d writes of 1 ms to one resource.", processes, z.hot/processes*processes),
		Cases: each(kinds, many(load.Load{Writers: 4, Resources: 1, Takes: time.Millisecond, Most: z.hot / processes, For: time.Minute,
			Patience: time.Duration(z.hot)*time.Millisecond + 2*z.patience})),
	}}
}

// childKey is the environment variable that makes this program a child: it has
// a job in it.
const childKey = "DEFERLOCK_BENCH_JOB"

// job is what a child is told. The name of the Redis goes with it: its password
// may be in there, and is no more visible in the environment than in REDIS_URL.
type job struct {
	Peer               string
	Load               load.Load
	Addr, User, Secret string
	DB, Pool           int
}

// done is what a child reports in the end.
type done struct {
	Records             measure.Records
	RoundTrips, Refused int64
	Allocations         uint64
	CPU                 time.Duration
}

// many is a round of a load in each of several processes.
func many(l load.Load) round {
	return func(ctx context.Context, b *bench, k peers.Kind) (measure.Figures, error) {
		if err := b.empty(ctx, 0); err != nil {
			return nil, err
		}
		f, err := b.many(ctx, k, l)
		return f, errors.Join(err, b.empty(ctx, 0))
	}
}

func (b *bench) many(ctx context.Context, k peers.Kind, l load.Load) (f measure.Figures, err error) {
	if b.server.options.TLSConfig != nil {
		return nil, errors.New("several processes do not speak TLS here: leave the group out with -only")
	}
	var crew []*worker
	defer func() {
		for _, w := range crew {
			err = errors.Join(err, w.end())
		}
	}()
	for n := range processes {
		w, err := b.hire(ctx, k, l, n)
		if err != nil {
			return nil, err
		}
		crew = append(crew, w)
	}
	for _, w := range crew { // all are warm
		if _, err := w.said(); err != nil {
			return nil, err
		}
	}
	before, err := measure.ReadServer(ctx, b.admin(0))
	if err != nil {
		return nil, err
	}
	began := measure.Now()
	for _, w := range crew {
		if err := w.tell("go"); err != nil {
			return nil, err
		}
	}
	if err := b.watch(ctx, crew, l.Patience); err != nil {
		return nil, err
	}
	ended := measure.Now()
	after, err := measure.ReadServer(ctx, b.admin(0))
	if err != nil {
		return nil, err
	}
	sum, err := collect(crew)
	if err != nil {
		return nil, err
	}
	s := session{}
	from := usage{server: before}
	to := usage{server: after, process: measure.Process{Allocations: sum.Allocations, CPU: sum.CPU},
		roundTrips: sum.RoundTrips, refused: sum.Refused}
	return s.figures(sum.Records, l, began, ended, from, to), nil
}

// watch returns when all that was handed over is done, or patience is at its end.
func (b *bench) watch(ctx context.Context, crew []*worker, patience time.Duration) error {
	end := time.After(patience)
	for {
		handed, did, busy := 0, 0, false
		for _, w := range crew {
			if err := w.tell("count"); err != nil {
				return err
			}
			p, err := w.said()
			if err != nil {
				return err
			}
			handed, did, busy = handed+p.Handed, did+p.Done, busy || p.Busy
		}
		if !busy && did >= handed {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// collect ends the crew and puts its reports together.
func collect(crew []*worker) (done, error) {
	var sum done
	for _, w := range crew { // all of them first: nobody is to go on alone
		if err := w.tell("stop"); err != nil {
			return sum, err
		}
	}
	for _, w := range crew {
		var d done
		if err := w.from.Decode(&d); err != nil {
			return sum, fmt.Errorf("a process's report: %w", err)
		}
		sum.Records.Add(d.Records)
		sum.RoundTrips += d.RoundTrips
		sum.Refused += d.Refused
		sum.Allocations += d.Allocations
		sum.CPU += d.CPU
	}
	return sum, nil
}

// worker is a child as its parent sees it.
type worker struct {
	cmd  *exec.Cmd
	to   io.WriteCloser
	from *gob.Decoder
}

// hire starts a child. It dies when its standard input ends.
func (b *bench) hire(ctx context.Context, k peers.Kind, l load.Load, n int) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l.First, l.FirstSeq = n*l.Writers, n*l.Most
	o := b.server.options
	told, err := json.Marshal(job{Peer: k.Name, Load: l, Addr: o.Addr, User: o.Username, Secret: o.Password, DB: o.DB, Pool: b.pool})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childKey+"="+string(told))
	cmd.Stderr = os.Stderr
	to, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &worker{cmd: cmd, to: to, from: gob.NewDecoder(bufio.NewReader(out))}, nil
}

func (w *worker) tell(what string) error {
	_, err := fmt.Fprintln(w.to, what)
	return err
}

// progress is what a child says when it is asked.
type progress struct {
	Handed, Done int
	Busy         bool // it still hands over
}

func (w *worker) said() (progress, error) {
	var p progress
	if err := w.from.Decode(&p); err != nil {
		return p, fmt.Errorf("a process has ended: %w", err)
	}
	return p, nil
}

func (w *worker) end() error {
	_ = w.to.Close()
	return w.cmd.Wait()
}
