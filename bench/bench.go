package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// bench is one run of the program.
type bench struct {
	server   *server
	pool     int
	size     size
	progress io.Writer

	admins   [databases]*redis.Client // of each database, nil until it is used
	backlogs [databases - 1]*waiting  // each in a database behind the first, until the workload is over
	results  []outcome
	began    time.Time
}

// outcome is what a workload gave.
type outcome struct {
	Workload workload
	Rounds   map[string][]measure.Figures // by case
}

// admin returns the client that asks and empties a database.
func (b *bench) admin(db int) *redis.Client {
	if b.admins[db] == nil {
		b.admins[db] = b.server.client(db, 1)
	}
	return b.admins[db]
}

// empty empties a database, even after ctx has ended.
func (b *bench) empty(ctx context.Context, db int) error {
	return b.admin(db).FlushDB(context.WithoutCancel(ctx)).Err()
}

func (b *bench) close() error {
	var err error
	for _, a := range b.admins {
		if a != nil {
			err = errors.Join(err, a.Close())
		}
	}
	return err
}

// open makes a session in one of the databases, with work that takes so long.
func (b *bench) open(k peers.Kind, db int, takes time.Duration) (*session, error) {
	return b.openWith(k, db, takes, b.server.optionsOf(db, b.pool))
}

func (b *bench) openWith(k peers.Kind, db int, takes time.Duration, opts redis.Options) (*session, error) {
	return open(k, opts, b.admin(db), load.NewWork(takes, measure.NewRecorder(0, 0)))
}

// loaded is one round of a load with a client of opts.
func (b *bench) loaded(ctx context.Context, k peers.Kind, l load.Load, opts redis.Options) (f measure.Figures, err error) {
	s, err := b.openWith(k, 0, l.Takes, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.round(ctx, l)
}

// run goes through the workloads.
func (b *bench) run(ctx context.Context, todo []workload) error {
	b.began = time.Now()
	for _, w := range todo {
		o, err := b.rounds(ctx, w)
		if w.end != nil {
			err = errors.Join(err, w.end(b, ctx))
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", w.Group, w.Name, err)
		}
		b.results = append(b.results, o)
		b.say(o)
	}
	return nil
}

// rounds has every case once in each round, in an order that rotates.
func (b *bench) rounds(ctx context.Context, w workload) (outcome, error) {
	o := outcome{Workload: w, Rounds: map[string][]measure.Figures{}}
	for r := range w.roundsOf(b.size.rounds) {
		first := r % len(w.Cases)
		for _, c := range slices.Concat(w.Cases[first:], w.Cases[:first]) {
			f, err := c.round(ctx, b)
			if err != nil {
				return o, fmt.Errorf("%s: %w", c.Name, err)
			}
			o.Rounds[c.Name] = append(o.Rounds[c.Name], f)
		}
	}
	return o, nil
}

// say tells of a workload that is over.
func (b *bench) say(o outcome) {
	fmt.Fprintf(b.progress, "%5.0fs %s, %s\n", time.Since(b.began).Seconds(), o.Workload.Group, o.Workload.Name)
	for _, c := range o.Workload.Cases {
		spreads := measure.Summarise(o.Rounds[c.Name])
		var line strings.Builder
		for _, m := range measure.All {
			if v, ok := spreads[m]; ok {
				fmt.Fprintf(&line, "  %s %.4g", m, v.Median)
			}
		}
		fmt.Fprintf(b.progress, "       %-10s%s\n", c.Name, line.String())
	}
}
