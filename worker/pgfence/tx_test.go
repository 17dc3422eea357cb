package pgfence_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

var (
	_ pgfence.DB = (*pgxpool.Pool)(nil)
	_ pgfence.DB = (*pgxpool.Conn)(nil)
	_ pgfence.DB = (*pgx.Conn)(nil)
	_ pgfence.DB = (pgx.Tx)(nil)
)

// acquire takes a connection out of the pool for the rest of the test.
func acquire(t testing.TB, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return c.Conn()
}

func TestConnectionAndPoolAreAlike(t *testing.T) {
	pool := database(t)
	conn := acquire(t, pool)
	for i, db := range []pgfence.DB{conn, pool, conn} {
		fence := int64(10 * (i + 1))
		write(t, db, worker.Info{ID: "w1", Resource: "alice", Fence: fence})
		writeBatch(t, db, fence+1, "a", "b")
		write(t, db, worker.Info{ID: "w1", Resource: "alice", Fence: fence + 2})
	}
	expect(t, pool, "w1", "a", "b")
	ctx := call(t, worker.Info{ID: "stale", Resource: "alice", Fence: 2})
	if err := pgfence.Write(ctx, conn, enter(ctx, "stale")); !errors.Is(err, pgfence.ErrStale) {
		t.Error(err)
	}
	if status := conn.PgConn().TxStatus(); status != 'I' {
		t.Errorf("the connection was left in state %c", status)
	}
}

func TestEveryQueryModeWorks(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		cfg := config(t)
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool := pgtest.Connect(t, cfg)
		prepare(t, pool)
		write(t, pool, worker.Info{ID: "w1", Resource: "alice's", Fence: 1})
		write(t, pool, worker.Info{ID: "w1", Resource: "alice's", Fence: 2})
		writeBatch(t, pool, 3, "a", "b")
		writeBatch(t, pool, 4, "a", "b", "c")
		ctx := call(t, worker.Info{ID: "stale", Resource: "alice", Fence: 2})
		if err := pgfence.Write(ctx, pool, enter(ctx, "stale")); !errors.Is(err, pgfence.ErrStale) {
			t.Errorf("%v: %v", mode, err)
		}
		if yes, err := pgfence.Applied(t.Context(), pool, name, "c"); err != nil || !yes {
			t.Errorf("%v: %v, %v", mode, yes, err)
		}
		if _, err := pgfence.Prune(t.Context(), pool, 0); err != nil {
			t.Errorf("%v: %v", mode, err)
		}
		expect(t, pool, "w1", "a", "b", "c")
	}
}

// What the fence adds is sent together with what would be sent anyway.
func TestFenceCostsNoRoundTrip(t *testing.T) {
	var line pgtest.Line
	cfg := config(t)
	line.Lead(cfg)
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	in := worker.Info{Resource: "alice"}
	trips := func(f func(context.Context) error) int {
		t.Helper()
		in.ID, in.Fence = in.ID+"x", in.Fence+1
		before := line.RoundTrips()
		if err := f(call(t, in)); err != nil {
			t.Fatal(err)
		}
		return line.RoundTrips() - before
	}
	plain := func(ctx context.Context) error { return pgx.BeginFunc(ctx, pool, enter(ctx, "plain")) }
	fenced := func(ctx context.Context) error { return pgfence.Write(ctx, pool, enter(ctx, "fenced")) }
	batch := func(ctx context.Context) error {
		in := batchOf(in.Fence, in.ID+"a", in.ID+"b")
		return pgfence.WriteBatch(calling(ctx, in), pool, []string{"a", "b"}, func(tx pgx.Tx, vs []string) error {
			return enter(ctx, vs[0]+vs[1])(tx)
		})
	}
	joined := func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pgfence.Write(ctx, tx, enter(ctx, "joined")) })
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Release() // a single connection, which prepares each statement once
	for _, f := range []func(context.Context) error{plain, fenced, batch, joined} {
		trips(f)
	}
	if got, want := trips(fenced), trips(plain); got != want {
		t.Errorf("Write: %d round trips, without the fence %d", got, want)
	}
	if got, want := trips(batch), trips(plain); got != want {
		t.Errorf("WriteBatch: %d round trips, without the fence %d", got, want)
	}
	if got, want := trips(joined), trips(plain)+1; got != want {
		t.Errorf("Write in a transaction: %d round trips, want %d", got, want)
	}
}

func TestJoinedTransactionIsTheCallersToCommit(t *testing.T) {
	pool := database(t)
	in := worker.Info{ID: "w1", Resource: "alice", Fence: 5}
	oops := errors.New("oops")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		write(t, tx, in)
		return oops
	})
	if !errors.Is(err, oops) {
		t.Fatal(err)
	}
	expect(t, pool)
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		write(t, tx, in)
		return enter(t.Context(), "the caller's")(tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "w1", "the caller's")
}

// A caller that goes on after an error must not commit the record of a write
// that did not take effect: it would be skipped for ever.
func TestJoinedTransactionIsAsItWasAfterAnError(t *testing.T) {
	pool := database(t)
	write(t, pool, worker.Info{ID: "before", Resource: "alice", Fence: 10, Kind: "k"})
	failing := func(ctx context.Context) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO nowhere VALUES (1)")
			return errors.Join(enter(ctx, "lost")(tx), err)
		}
	}
	for what, in := range map[string]worker.Info{
		"a function that fails": {ID: "w1", Resource: "alice", Fence: 11},
		"a stale holder":        {ID: "w1", Resource: "alice", Fence: 9},
		"another payload":       {ID: "before", Resource: "alice", Fence: 11},
		"a skip":                {ID: "before", Resource: "alice", Fence: 11, Kind: "k"},
	} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			ctx := call(t, in)
			if err := pgfence.Write(ctx, tx, failing(ctx)); (err == nil) != (what == "a skip") {
				t.Errorf("%s: %v", what, err)
			}
			if limit := setting(t, tx, "lock_timeout"); limit != "0" {
				t.Errorf("%s: lock_timeout is %s afterwards", what, limit)
			}
			return enter(t.Context(), what)(tx)
		})
		if err != nil {
			t.Errorf("%s: the caller's transaction: %v", what, err)
		}
	}
	if got := fences(t, pool); !slices.Equal(got, []int64{10}) {
		t.Errorf("fences %v", got)
	}
	write(t, pool, worker.Info{ID: "w1", Resource: "alice", Fence: 12})
	if got := ledger(t, pool); len(got) != 6 || got[5] != "w1" {
		t.Errorf("took effect: %q", got)
	}
}

// Were it not for the look at the transaction's state, the caller would hear of
// it as late as in its commit, and could not go on with anything else.
func TestErrorThatTheFunctionSwallowsIsFoundInAJoinedTransaction(t *testing.T) {
	pool := database(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
		err := pgfence.Write(ctx, tx, func(tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "INSERT INTO nowhere VALUES (1)")
			return nil
		})
		if !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("the function's write failed, and Write returned %v", err)
		}
		return enter(ctx, "the caller's")(tx)
	})
	if err != nil {
		t.Error(err)
	}
	expect(t, pool, "the caller's")
}

func TestJoinedTransactionInsideOfASavepoint(t *testing.T) {
	pool := database(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return pgx.BeginFunc(t.Context(), tx, func(inner pgx.Tx) error {
			write(t, inner, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
			write(t, inner, worker.Info{ID: "w2", Resource: "bob", Fence: 1})
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "w1", "w2")
}

// A connection on which the record cannot be taken back must not commit it.
func TestJoinedTransactionThatCannotGoBackIsBroken(t *testing.T) {
	pool := database(t)
	in := worker.Info{ID: "w1", Resource: "alice", Fence: 1}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		ctx := call(t, in)
		var rows pgx.Rows
		if err := pgfence.Write(ctx, tx, func(tx pgx.Tx) error {
			rows, _ = tx.Query(ctx, "SELECT generate_series(1, 9)") // left open: nothing else can be sent
			return errors.New("oops")
		}); err == nil {
			t.Error("nil")
		}
		rows.Close()
		return nil // the caller commits all the same
	})
	if err == nil {
		t.Error("the commit succeeded")
	}
	write(t, pool, in)
	expect(t, pool, "w1")
}

// The reply to the commit is lost: the write has taken effect, and nobody has
// heard of it.
func TestCommitWithoutAReplyIsFoundOutByTheNextDelivery(t *testing.T) {
	var line pgtest.Line
	cfg := config(t)
	line.Lead(cfg)
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	in := worker.Info{ID: "w1", Resource: "alice", Fence: 1}
	ctx := call(t, in)
	err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
		line.LoseReply("commit")
		return enter(ctx, "once")(tx)
	})
	if err == nil {
		t.Fatal("a commit whose outcome is not known counted as done")
	}
	redistest.Wait(t, "the commit is carried out", func() bool { return len(ledger(t, pool)) == 1 })
	in.Fence = 2
	write(t, pool, in)
	expect(t, pool, "once")
}

func setting(t testing.TB, db pgfence.DB, name string) (value string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}
