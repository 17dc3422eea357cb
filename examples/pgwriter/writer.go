package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// This file is the part to copy. What it needs beside it is a statement of
// yours in the place of post, and once, before all else, pgfence.Setup.

// Credit is one write: so much for an account.
type Credit struct {
	ID      string
	Account string
	Amount  int64
}

// newCredits makes the writer. Every process that submits credits, or does
// those that were deferred, makes one with the same cfg.Name.
//
//	out, err := credits.Do(ctx, c) // runs post now, or defers it; never waits
//	err = w.Run(ctx)               // does what was deferred, here or elsewhere
func newCredits(
	rdb redis.UniversalClient, db *pgxpool.Pool, cfg worker.Config, post func(context.Context, pgx.Tx, Credit) error,
) (*worker.Worker, *worker.Writer[Credit], error) {
	w, err := worker.New(rdb, cfg)
	if err != nil {
		return nil, nil, err
	}
	// One at a time for each account and in order is the worker's doing. That a
	// write takes effect exactly once, also when its process dies, is pgfence's:
	// post runs in a transaction that remembers the write's ID.
	write := func(ctx context.Context, c Credit) error {
		return pgfence.Write(ctx, db, func(tx pgx.Tx) error { return post(ctx, tx, c) })
	}
	credits, err := worker.Wrap(w, write, worker.Kind[Credit]{
		Name:           "credit",
		Resource:       func(c Credit) string { return c.Account },
		IdempotencyKey: func(_ context.Context, c Credit) string { return c.ID },
	})
	return w, credits, err
}
