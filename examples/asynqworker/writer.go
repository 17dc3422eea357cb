package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// This file is the part to copy.

// Credit is the payload of a task: so much for an account.
type Credit struct {
	Account string
	Amount  int64
}

// newCredits makes the writer, as without asynq but for two things: a write
// that fails is deferred instead of returned to asynq, and the task's ID is the
// idempotency key.
func newCredits(
	rdb redis.UniversalClient, db *pgxpool.Pool, cfg worker.Config, post func(context.Context, pgx.Tx, Credit) error,
) (*worker.Worker, *worker.Writer[Credit], error) {
	// asynq would try a failed task again beside newer ones of its account, and
	// they would overtake it. In its lane it stays before them.
	cfg.DeferFailures = true
	w, err := worker.New(rdb, cfg)
	if err != nil {
		return nil, nil, err
	}
	write := func(ctx context.Context, c Credit) error {
		return pgfence.Write(ctx, db, func(tx pgx.Tx) error { return post(ctx, tx, c) })
	}
	credits, err := worker.Wrap(w, write, worker.Kind[Credit]{
		Name:     "credit",
		Resource: func(c Credit) string { return c.Account },
		IdempotencyKey: func(ctx context.Context, _ Credit) string {
			id, _ := asynq.GetTaskID(ctx)
			return id
		},
	})
	return w, credits, err
}

// handle makes the handler for asynq's tasks. A task is done when its write has
// run or is in the queue. Any error means that it is neither, or that nobody
// knows: asynq then tries the task again under the same ID, which is safe.
func handle(credits *worker.Writer[Credit]) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		var c Credit
		if err := json.Unmarshal(task.Payload(), &c); err != nil {
			return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
		}
		_, err := credits.Do(ctx, c)
		if worker.IsPermanent(err) {
			return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
		}
		return err
	}
}
