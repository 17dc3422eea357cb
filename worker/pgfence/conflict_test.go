package pgfence_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// increment is an effect that reads before it writes.
func increment(ctx context.Context, called *int) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		*called++
		var balance int
		if err := tx.QueryRow(ctx, "SELECT balance FROM account WHERE id = 'alice'").Scan(&balance); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE account SET balance = $1 WHERE id = 'alice'", balance+1)
		return err
	}
}

func balance(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT balance FROM account WHERE id = 'alice'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// At stricter levels a holder that waited for another's commit gets 40001.
func TestStricterIsolationLevelsWork(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			cfg := config(t)
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			pool := pgtest.Connect(t, cfg)
			prepare(t, pool)
			execute(t, pool, "INSERT INTO account VALUES ('alice', 0)")
			write(t, pool, worker.Info{ID: "w0", Resource: "alice", Fence: 0})
			var first, second int
			done := make(chan error, 1)
			ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
			err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
				if err := increment(ctx, &first)(tx); err != nil {
					return err
				}
				go func() {
					ctx := call(t, worker.Info{ID: "w2", Resource: "alice", Fence: 2})
					done <- pgfence.Write(ctx, pool, increment(ctx, &second))
				}()
				waitBlocked(t, pool)
				return nil
			})
			if err := errors.Join(err, <-done); err != nil {
				t.Fatal(err)
			}
			if n := balance(t, pool); n != 2 || second != 1 {
				t.Errorf("balance %d, want 2; the second function was called %d times", n, second)
			}
		})
	}
}

// Two writes to different resources that touch the same rows are none of the
// lock's business, and Postgres's.
func TestConflictsAreRetriedABoundedNumberOfTimes(t *testing.T) {
	pool := database(t)
	for _, state := range []string{"40001", "40P01"} {
		for failures, want := range map[int]bool{1: true, 4: true, 5: false} {
			called := 0
			id := state + string(rune('0'+failures))
			ctx := call(t, worker.Info{ID: id, Resource: "alice", Fence: 1})
			err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
				if err := enter(ctx, id)(tx); err != nil {
					return err
				}
				if called++; called > failures {
					return nil
				}
				_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '"+state+"'; END $$")
				return err
			})
			if (err == nil) != want || called != min(failures+1, 5) {
				t.Errorf("%s, %d times: %v after %d calls", state, failures, err, called)
			}
			var pg *pgconn.PgError
			if err != nil && !errors.As(err, &pg) {
				t.Errorf("%s: the reason is lost: %v", state, err)
			}
		}
	}
	if got := len(ledger(t, pool)); got != 4 {
		t.Errorf("%d entries, want 4: %q", got, ledger(t, pool))
	}
}

// A serializable transaction can fail as late as in its commit.
func TestConflictInTheCommitIsRetried(t *testing.T) {
	cfg := config(t)
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	// Write skew: each of the two sees no entry but its own.
	const sum = "INSERT INTO ledger (entry) SELECT count(*) FROM ledger"
	called, other := 0, acquire(t, pool)
	ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
	err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
		called++
		if _, err := tx.Exec(ctx, sum); err != nil || called > 1 {
			return err
		}
		return pgx.BeginFunc(ctx, other, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, sum); return err })
	})
	if err != nil || called != 2 {
		t.Errorf("%v after %d calls", err, called)
	}
	expect(t, pool, "0", "1")
}

func TestRealDeadlockIsRetried(t *testing.T) {
	cfg := config(t)
	cfg.ConnConfig.RuntimeParams["deadlock_timeout"] = "50ms"
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	execute(t, pool, "INSERT INTO account VALUES ('alice', 0), ('bob', 0)")
	const add = "UPDATE account SET balance = balance + 1 WHERE id = $1"
	var both, wg sync.WaitGroup
	both.Add(2)
	for _, ids := range [][]string{{"alice", "bob"}, {"bob", "alice"}} {
		wg.Go(func() {
			met := sync.OnceFunc(func() { both.Done(); both.Wait() })
			ctx := call(t, worker.Info{ID: "w", Resource: ids[0], Fence: 1})
			err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, add, ids[0]); err != nil {
					return err
				}
				met()
				_, err := tx.Exec(ctx, add, ids[1])
				return err
			})
			if err != nil {
				t.Errorf("%v: %v", ids, err)
			}
		})
	}
	wg.Wait()
	if n := balance(t, pool); n != 2 {
		t.Errorf("balance %d, want 2", n)
	}
}

// There is nothing to begin anew in a transaction that somebody else has begun.
func TestJoinedTransactionIsNotRetried(t *testing.T) {
	pool := database(t)
	called := 0
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
		err := pgfence.Write(ctx, tx, func(tx pgx.Tx) error {
			called++
			return &pgconn.PgError{Code: "40001"}
		})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || called != 1 {
			t.Errorf("%v after %d calls", err, called)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
