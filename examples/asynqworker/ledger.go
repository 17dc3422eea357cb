package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

//go:embed schema.sql
var schemaSource string

// openLedger connects to a schema of its own, which need not exist yet.
func openLedger(ctx context.Context, url, schema string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 12
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	return pgxpool.NewWithConfig(ctx, cfg)
}

// createLedger makes the schema with its tables, pgfence's among them.
func createLedger(ctx context.Context, db *pgxpool.Pool, schema string) error {
	for _, sql := range []string{"CREATE SCHEMA " + pgx.Identifier{schema}.Sanitize(), schemaSource} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
	}
	return pgfence.Setup(ctx, db)
}

// dropLedger removes what createLedger has made.
func dropLedger(ctx context.Context, db *pgxpool.Pool, schema string) error {
	_, err := db.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
	return err
}

// errHiccup is how the example's writes fail.
var errHiccup = errors.New("something the write needs was not there for a moment")

// post reads the balance, thinks for a while and writes the new one: two that
// overlap lose an update. Every tenth task fails on its first two attempts.
func post(ctx context.Context, tx pgx.Tx, c Credit) error {
	in, _ := worker.FromContext(ctx)
	if fails(in.ID) && in.Attempt <= 2 {
		return errHiccup
	}
	var balance int64
	if err := tx.QueryRow(ctx, `SELECT balance FROM accounts WHERE account = $1`, c.Account).Scan(&balance); err != nil {
		return fmt.Errorf("read the balance: %w", err)
	}
	t := time.NewTimer(2 * time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
	}
	_, err := tx.Exec(ctx, `
		WITH a AS (UPDATE accounts SET balance = $2 WHERE account = $1 RETURNING account)
		INSERT INTO entries (task, account, amount, attempt, before, after) SELECT $3, a.account, $4, $5, $6, $2 FROM a`,
		c.Account, balance+c.Amount, in.ID, c.Amount, in.Attempt, balance)
	if err != nil {
		return fmt.Errorf("write the balance: %w", err)
	}
	return nil
}

// fails tells which tasks fail at first: task-10, task-20 and so on.
func fails(task string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(task, "task-"))
	return err == nil && n%10 == 0
}

// checks are queries that count violations.
var checks = []struct{ good, bad, sql string }{
	{"every task took effect", "tasks were lost",
		`SELECT count(*) FROM tasks t WHERE NOT EXISTS (SELECT FROM entries e WHERE (e.task, e.account, e.amount) = (t.task, t.account, t.amount))`},
	{"none took effect twice", "tasks took effect more than once",
		`SELECT count(*) - count(DISTINCT task) FROM entries`},
	{"each write found the balance its predecessor left", "writes started from a stale balance: an update was lost",
		`SELECT count(*) FROM (SELECT before, lag(after, 1, 0::bigint) OVER (PARTITION BY account ORDER BY place) AS should_be FROM entries) AS walk
		 WHERE before <> should_be`},
	{"the balances are the sums of the tasks", "accounts hold a wrong balance",
		`SELECT count(*) FROM accounts a WHERE balance <> (SELECT coalesce(sum(amount), 0) FROM tasks t WHERE t.account = a.account)`},
}
