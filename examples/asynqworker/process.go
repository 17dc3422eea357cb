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
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/worker"
)

// processKey is the environment variable that makes a process of this program a
// worker process. It holds a job.
const processKey = "ASYNQWORKER_PROCESS"

// job is what a worker process is told.
type job struct {
	Name     string // the worker's, the schema's and asynq's queue's
	Redis    string
	Postgres string
}

// counts is what a worker process tells on its standard output when it ends.
type counts struct {
	Deferred int64 // because their account was busy
	Failed   int64 // that failed in the task and were deferred instead of given back to asynq
	Retried  int64 // starts after the first
}

// process is a worker process: it works asynq's queue and deferlock's, until
// its standard input ends.
func process(told string) error {
	signal.Ignore(os.Interrupt) // the terminal sends it to all; the parent decides
	logging.Disable()           // go-redis: the errors come back from the calls
	var j job
	if err := json.Unmarshal([]byte(told), &j); err != nil {
		return fmt.Errorf("%s: %w", processKey, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the parent, whatever ends that
		cancel()
	}()
	opts, err := redis.ParseURL(j.Redis)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	db, err := openLedger(ctx, j.Postgres, j.Name)
	if err != nil {
		return err
	}
	defer db.Close()
	var s seen
	w, credits, err := newCredits(rdb, db, worker.Config{
		Name: j.Name,
		// A write that failed keeps its place, so its account waits for as long.
		Backoff: func(int) time.Duration { return 10 * time.Millisecond },
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observe: s.observe,
	}, post)
	if err != nil {
		return err
	}
	tasks := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 8, Queues: map[string]int{j.Name: 1}, LogLevel: asynq.FatalLevel})
	if err := tasks.Start(handle(credits)); err != nil {
		return err
	}
	// asynq ends first: what its last tasks defer should still find a Run.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-ctx.Done()
		tasks.Shutdown()
		stop()
	}()
	err = w.Run(running)
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(s.counts()))
}

// seen counts while a process works.
type seen struct{ deferred, failed, retried atomic.Int64 }

func (s *seen) observe(e worker.Event) {
	switch {
	case e.Type == worker.EventDeferred && e.Why == deferral.AtHead:
		s.failed.Add(1)
	case e.Type == worker.EventDeferred:
		s.deferred.Add(1)
	case e.Type == worker.EventStarted && e.Attempt > 1:
		s.retried.Add(1)
	}
}

func (s *seen) counts() counts {
	return counts{Deferred: s.deferred.Load(), Failed: s.failed.Load(), Retried: s.retried.Load()}
}
