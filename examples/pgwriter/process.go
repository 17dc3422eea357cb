package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/deferlock/deferlock/worker"
)

// processKey is the environment variable that makes a process of this program a
// worker process. It holds a job.
const processKey = "PGWRITER_PROCESS"

// job is what a worker process is told.
type job struct {
	Load     load
	Name     string // the worker's, and the schema's
	Redis    string
	Postgres string
	Process  int

	// Next has for each writer of the process the number of the write it begins
	// with: not 1 where it takes over from a process that died.
	Next []int
}

// line is what a worker process tells, on its standard output.
type line struct {
	What     string `json:"what"` // one of the constants below
	Writer   int    `json:"writer,omitempty"`
	Seq      int    `json:"seq,omitempty"`
	At       int64  `json:"at,omitempty"` // nanoseconds since 1970
	Deferred bool   `json:"deferred,omitempty"`
	Error    string `json:"error,omitempty"`
}

const (
	saidCall   = "call"   // a write is about to be submitted
	saidReturn = "return" // it was accepted
	saidRetry  = "retry"  // a write was started again
	saidError  = "error"  // submitting failed; it is tried again
)

// recipe is a way to get writes done: deferlock's, and the plain one.
type recipe interface {
	// submit does a write or defers it. It may be called again after an error.
	submit(ctx context.Context, c Credit) (deferred bool, err error)
	// run does what was deferred, until ctx ends.
	run(ctx context.Context) error
}

// deferlock is the recipe of writer.go.
type deferlock struct {
	worker  *worker.Worker
	credits *worker.Writer[Credit]
}

func newDeferlock(rdb redis.UniversalClient, db *pgxpool.Pool, j *job, say func(line)) (*deferlock, error) {
	w, credits, err := newCredits(rdb, db, worker.Config{
		Name: j.Name, Batch: j.Load.Batch, Lookback: j.Load.Lookback, LockTTL: j.Load.lockTTL(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observe: func(e worker.Event) {
			if e.Type == worker.EventStarted && e.Attempt > 1 {
				say(line{What: saidRetry})
			}
		},
	}, poster(j.Load.Takes))
	return &deferlock{w, credits}, err
}

func (d *deferlock) submit(ctx context.Context, c Credit) (bool, error) {
	out, err := d.credits.Do(ctx, c)
	return out.Deferred, err
}

func (d *deferlock) run(ctx context.Context) error { return d.worker.Run(ctx) }

// process is a worker process: it submits its writers' shares, and does what
// was deferred by any process, until its standard input ends.
func process(told string) error {
	signal.Ignore(os.Interrupt) // the terminal sends it to all; the parent decides
	logging.Disable()           // go-redis: the errors come back from the calls
	var j job
	if err := json.Unmarshal([]byte(told), &j); err != nil {
		return fmt.Errorf("%s: %w", processKey, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rdb, err := connect(j.Redis)
	if err != nil {
		return err
	}
	defer rdb.Close()
	db, err := openLedger(ctx, j.Postgres, j.Name, connections(j.Load.Processes))
	if err != nil {
		return err
	}
	defer db.Close()
	p := &submitters{job: &j, credits: newLoad(j.Load), out: os.Stdout}
	if j.Load.Naive {
		p.recipe = newNaive(rdb, db, &j, p.say)
	} else if p.recipe, err = newDeferlock(rdb, db, &j, p.say); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the parent, whatever ends that
		cancel()
	}()
	return p.work(ctx)
}

// connections is how many a process may open to the database, so that all
// together stay below the 100 that a Postgres allows by default.
func connections(processes int) int { return min(12, max(2, 80/processes)) }

// submitters are the writers of one process.
type submitters struct {
	job     *job
	credits *credits
	recipe  recipe

	// mu makes lines come out whole.
	mu  sync.Mutex
	out io.Writer
}

func (p *submitters) work(ctx context.Context) error {
	var all sync.WaitGroup
	for i, next := range p.job.Next {
		all.Go(func() { p.submitAll(ctx, p.job.Process*p.job.Load.Writers+i, next) })
	}
	err := p.recipe.run(ctx)
	all.Wait()
	return err
}

// submitAll submits what is left of a writer's share, one write after the other.
func (p *submitters) submitAll(ctx context.Context, writer, next int) {
	for seq := next; seq <= p.credits.share(writer) && ctx.Err() == nil; seq++ {
		c := p.credits.of(writer, seq)
		p.say(line{What: saidCall, Writer: writer, Seq: seq, At: time.Now().UnixNano()})
		deferred, err := p.recipe.submit(ctx, c)
		for err != nil && ctx.Err() == nil {
			// Whatever the error is: to call again with the same ID is safe.
			p.say(line{What: saidError, Error: err.Error()})
			if errors.Is(pause(ctx, 20*time.Millisecond), context.Canceled) {
				return
			}
			deferred, err = p.recipe.submit(ctx, c)
		}
		if err != nil {
			return
		}
		p.say(line{What: saidReturn, Writer: writer, Seq: seq, At: time.Now().UnixNano(), Deferred: deferred})
	}
}

// say tells the parent. A line is one write of less than 4 KB to a pipe: it is
// there in one piece or not at all, even if the process is killed.
func (p *submitters) say(l line) {
	if len(l.Error) > 500 {
		l.Error = l.Error[:500]
	}
	text, err := json.Marshal(l)
	if err != nil {
		return // a line has nothing that cannot be encoded
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.out.Write(append(text, '\n')) // without a parent there is nobody to tell
}
