package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
	"github.com/deferlock/deferlock/bench/report"
)

// backlogWorkloads measure what it costs to take, do and acknowledge a write
// while many others wait, with nothing else going on. Each backlog has a database of its own, so that all are there at the same time and
// each round has every one of them.
func backlogWorkloads(z size) []workload {
	all := []workload{backlogOf("kaito", peers.Kaito, coldLane, z)}
	for _, lane := range lanes {
		all = append(all, backlogOf("deferlock, "+lane.name, peers.Deferlock, lane.of, z))
	}
	return all
}

func backlogOf(name string, k peers.Kind, of func(int) string, z size) workload {
	w := workload{
		Group: "backlog", Name: name,
		About: "What one write costs of those that wait, when they are done step by step: RunOnce, or a pop of 5.",
		end:   (*bench).endBacklogs,
	}
	for i, n := range z.backlogs {
		c := testCase{Name: report.Number(float64(n)) + " wait", Kind: k, round: func(ctx context.Context, b *bench) (measure.Figures, error) {
			return b.steps(ctx, i, k, of, n)
		}}
		w.Cases = append(w.Cases, c)
	}
	w.Base = w.Cases[0].Name
	return w
}

// waiting is a backlog that is there until the workload is over.
type waiting struct {
	*session
	peer load.Stepper
	of   func(int) string
	size int
	next int // the number of the next write that is put there
}

// fill returns the ith backlog, and makes it when it is not there yet.
func (b *bench) fill(ctx context.Context, i int, k peers.Kind, of func(int) string, n int) (*waiting, error) {
	if w := b.backlogs[i]; w != nil {
		return w, nil
	}
	s, err := b.open(k, 1+i, 0)
	if err != nil {
		return nil, err
	}
	stepper, ok := s.peer.(load.Stepper)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s cannot be taken step by step", k.Name), s.close())
	}
	w := &waiting{session: s, peer: stepper, of: of, size: n}
	b.backlogs[i] = w
	if err := s.empty(ctx); err != nil {
		return nil, err
	}
	if err := w.put(ctx, n); err != nil {
		return nil, err
	}
	_, err = stepper.Step(ctx) // loads the scripts
	return w, err
}

func (w *waiting) put(ctx context.Context, n int) error {
	w.next += n
	return put(ctx, w.peer, w.of, w.next-n, n)
}

// endBacklogs removes all backlogs.
func (b *bench) endBacklogs(ctx context.Context) error {
	var err error
	for i, w := range b.backlogs {
		if w != nil {
			err = errors.Join(err, w.empty(ctx), w.close())
		}
		b.backlogs[i] = nil
	}
	return err
}

// steps takes steps of a backlog, up to a quarter of it at a time, fills it up
// again, and goes on until there have been enough of them. Only the steps count.
func (b *bench) steps(ctx context.Context, i int, k peers.Kind, of func(int) string, n int) (measure.Figures, error) {
	w, err := b.fill(ctx, i, k, of, n)
	if err != nil {
		return nil, err
	}
	var sum measure.Figures
	var took time.Duration
	var writes float64
	for stepping := b.size.submit / 3; took < stepping; {
		did, d, f, err := w.some(ctx, stepping-took)
		if err != nil {
			return nil, err
		}
		sum, took, writes = add(sum, f), took+d, writes+float64(did)
		if err := w.put(ctx, did); err != nil {
			return nil, err
		}
	}
	for m := range sum {
		sum[m] /= writes
	}
	sum[measure.StepTime] = float64(took.Nanoseconds()) / 1e3 / writes
	delete(sum, measure.Refused)
	return sum, nil
}

// some takes steps for at most d, or until a quarter of the backlog is gone.
// The figures are for all writes together.
func (w *waiting) some(ctx context.Context, d time.Duration) (did int, took time.Duration, f measure.Figures, err error) {
	rec := measure.NewRecorder(0, 2*w.size)
	w.work.Record(rec)
	before, err := w.usage(ctx)
	if err != nil {
		return 0, 0, nil, err
	}
	began := time.Now()
	for did < max(w.size/4, 1) && took < d {
		n, err := w.peer.Step(ctx)
		if err != nil {
			return 0, 0, nil, err
		}
		did, took = did+n, time.Since(began)
		if n == 0 && took > 5*time.Second {
			return 0, 0, nil, errors.New("nothing is taken although writes wait")
		}
	}
	after, err := w.usage(ctx)
	return did, took, after.since(before, 1), err
}

// add returns the sums of figures.
func add(a, b measure.Figures) measure.Figures {
	if a == nil {
		return b
	}
	sum := maps.Clone(a)
	for m, v := range b {
		sum[m] += v
	}
	return sum
}
