package main

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

//go:embed schema.sql
var schemaSource string

// openLedger connects to a schema of its own, which need not exist yet. At most
// conns connections are opened.
func openLedger(ctx context.Context, url, schema string, conns int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(conns)
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	return pgxpool.NewWithConfig(ctx, cfg)
}

// createLedger makes the schema with its tables, pgfence's among them.
func createLedger(ctx context.Context, db *pgxpool.Pool, schema string, c *credits) error {
	if _, err := db.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize()); err != nil {
		return fmt.Errorf("make a schema: %w", err)
	}
	if _, err := db.Exec(ctx, schemaSource); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if err := pgfence.Setup(ctx, db); err != nil {
		return err
	}
	_, err := db.CopyFrom(ctx, pgx.Identifier{"accounts"}, []string{"account"}, pgx.CopyFromSlice(c.Resources, func(k int) ([]any, error) {
		return []any{c.account(k)}, nil
	}))
	if err != nil {
		return fmt.Errorf("open the accounts: %w", err)
	}
	return nil
}

// dropLedger removes what createLedger has made.
func dropLedger(ctx context.Context, db *pgxpool.Pool, schema string) error {
	_, err := db.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
	return err
}

// poster returns the handler's work on the database: read the balance, think
// for a while, write the new one. Two that overlap lose an update. That is the
// point: nothing but the lock keeps them apart.
func poster(takes time.Duration) func(context.Context, pgx.Tx, Credit) error {
	return func(ctx context.Context, tx pgx.Tx, c Credit) error {
		var balance int64
		var entered time.Time
		err := tx.QueryRow(ctx, `SELECT balance, clock_timestamp() FROM accounts WHERE account = $1`, c.Account).
			Scan(&balance, &entered)
		if err != nil {
			return fmt.Errorf("read the balance: %w", err)
		}
		if err := pause(ctx, takes); err != nil {
			return err
		}
		in, _ := worker.FromContext(ctx) // the plain recipe has no fence: 0
		_, err = tx.Exec(ctx, `
			WITH a AS (UPDATE accounts SET balance = $2, version = version + 1 WHERE account = $1 RETURNING version)
			INSERT INTO entries (account, version, write, amount, before, after, fence, entered, finished)
			SELECT $1, a.version, $3, $4, $5, $2, $6, $7, clock_timestamp() FROM a`,
			c.Account, balance+c.Amount, c.ID, c.Amount, balance, in.Fence, entered)
		if err != nil {
			return fmt.Errorf("write the balance: %w", err)
		}
		return nil
	}
}

// pause waits for d, or fails when ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
