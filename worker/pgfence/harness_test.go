package pgfence_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

const name = "accounts"

// database returns a pool of connections to a schema that has the tables of
// pgfence and a ledger.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Start(t).Pool(t)
	prepare(t, pool)
	return pool
}

func prepare(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	if err := pgfence.Setup(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, "CREATE TABLE ledger (n bigserial PRIMARY KEY, entry text NOT NULL)")
	execute(t, pool, "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)")
}

func execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// call is the context of one call of a function that does the write.
func call(t testing.TB, in worker.Info) context.Context {
	t.Helper()
	return calling(t.Context(), in)
}

func calling(ctx context.Context, in worker.Info) context.Context {
	if in.Name == "" {
		in.Name = name
	}
	return worker.NewContext(ctx, in)
}

// enter is the effect of a write: a line in the ledger.
func enter(ctx context.Context, entry string) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO ledger (entry) VALUES ($1)", entry)
		return err
	}
}

// ledger is what took effect, in order.
func ledger(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT entry FROM ledger ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// expect compares the ledger.
func expect(t testing.TB, pool *pgxpool.Pool, want ...string) {
	t.Helper()
	if got := ledger(t, pool); !slices.Equal(got, want) {
		t.Errorf("took effect: %q, want %q", got, want)
	}
}

// write does a write whose effect is its ID in the ledger.
func write(t testing.TB, db pgfence.DB, in worker.Info) {
	t.Helper()
	ctx := call(t, in)
	if err := pgfence.Write(ctx, db, enter(ctx, in.ID)); err != nil {
		t.Fatalf("write %q: %v", in.ID, err)
	}
}

// batchOf is the Info of a batch on one resource.
func batchOf(fence int64, ids ...string) worker.Info {
	var batch []worker.Info
	for _, id := range ids {
		batch = append(batch, worker.Info{Name: name, ID: id, Resource: "alice", Fence: fence})
	}
	in := batch[0]
	in.Batch = batch
	return in
}

// writeBatch does a batch whose effect is its IDs in the ledger.
func writeBatch(t testing.TB, db pgfence.DB, fence int64, ids ...string) {
	t.Helper()
	ctx := call(t, batchOf(fence, ids...))
	if err := pgfence.WriteBatch(ctx, db, ids, enterAll(ctx)); err != nil {
		t.Fatalf("write %q: %v", ids, err)
	}
}

// enterAll is the effect of a batch.
func enterAll(ctx context.Context) func(pgx.Tx, []string) error {
	return func(tx pgx.Tx, entries []string) error {
		for _, e := range entries {
			if err := enter(ctx, e)(tx); err != nil {
				return err
			}
		}
		return nil
	}
}

// fences are the fences the database has seen, in order.
func fences(t testing.TB, pool *pgxpool.Pool) []int64 {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT fence FROM deferlock_fence ORDER BY fence")
	if err != nil {
		t.Fatal(err)
	}
	seen, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// waitBlocked waits until a statement on the tables of this test waits for a
// lock.
func waitBlocked(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	redistest.Wait(t, "a statement waits for a lock", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			 WHERE wait_event_type = 'Lock' AND application_name = current_setting('application_name')`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
}

// config is that of a pool of connections to an empty schema.
func config(t testing.TB) *pgxpool.Config {
	t.Helper()
	s := pgtest.Start(t)
	return s.Config(t, s.Schema(t))
}
