package pgfence_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

func TestRedeliveredWriteIsSkippedAndCountsAsDone(t *testing.T) {
	pool := database(t)
	for fence := range int64(3) {
		ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 10 + fence})
		if err := pgfence.Write(ctx, pool, enter(ctx, "once")); err != nil {
			t.Fatalf("delivery %d: %v", fence+1, err)
		}
	}
	expect(t, pool, "once")
}

func TestStaleHolderIsRefusedAndNothingIsWritten(t *testing.T) {
	pool := database(t)
	write(t, pool, worker.Info{ID: "later", Resource: "alice", Fence: 20})
	stale := worker.Info{ID: "earlier", Resource: "alice", Fence: 19}
	ctx := call(t, stale)
	if err := pgfence.Write(ctx, pool, enter(ctx, "too late")); !errors.Is(err, pgfence.ErrStale) {
		t.Fatalf("a stale holder got %v", err)
	}
	expect(t, pool, "later")
	// Refused is not applied: its next holder does it.
	stale.Fence = 21
	write(t, pool, stale)
	expect(t, pool, "later", "earlier")
}

// `<` for `<=` would refuse a holder's own second write: a batch that is run one
// by one has one fence.
func TestOneHolderMayWriteManyTimes(t *testing.T) {
	pool := database(t)
	for _, id := range []string{"a", "b", "c"} {
		write(t, pool, worker.Info{ID: id, Resource: "alice", Fence: 5})
	}
	expect(t, pool, "a", "b", "c")
}

func TestSameKeyWithAnotherPayloadIsAnErrorAndNotASkip(t *testing.T) {
	pool := database(t)
	write(t, pool, worker.Info{Kind: "credit", ID: "w1", Resource: "alice", Fence: 1})
	other := worker.Info{Kind: "debit", ID: "w1", Resource: "alice", Fence: 2}
	ctx := call(t, other)
	err := pgfence.Write(ctx, pool, enter(ctx, "another payload"))
	if !errors.Is(err, pgfence.ErrMismatch) || !worker.IsPermanent(err) {
		t.Errorf("Write: %v, permanent %v", err, worker.IsPermanent(err))
	}
	fresh := worker.Info{Kind: "credit", ID: "w2", Resource: "alice", Fence: 2}
	other.Batch = []worker.Info{fresh, other}
	ctx = call(t, other)
	err = pgfence.WriteBatch(ctx, pool, []string{"fresh", "another payload"}, enterAll(ctx))
	if !errors.Is(err, pgfence.ErrMismatch) {
		t.Errorf("WriteBatch: %v", err)
	}
	expect(t, pool, "w1")
}

func TestNameResourceAndKeyAreKeptApart(t *testing.T) {
	pool := database(t)
	var want []string
	for i, in := range []worker.Info{
		{Name: "a", Resource: "b", ID: "c"},
		{Name: "ab", Resource: "c", ID: "c"},
		{Name: "a", Resource: "bc", ID: "c"},
		{Name: "a", Resource: "c", ID: "b"},
		{Name: "a", Resource: "b", ID: "cc"},
		{Name: "ab", Resource: "b", ID: "c"},
		{Name: "a", Resource: "", ID: "c"},
		{Name: "a", Resource: "B", ID: "c"},
		{Name: "a", Resource: "b ", ID: "c"},
		{Name: "a", Resource: "{b}:\n'\"\\ä", ID: "c"},
		{Name: strings.Repeat("n", 128), Resource: strings.Repeat("ä", 512), ID: strings.Repeat("ü", 128)},
	} {
		in.Fence = int64(100 + i)
		write(t, pool, in)
		want = append(want, in.ID)
	}
	expect(t, pool, want...)
	// And each has a fence of its own.
	write(t, pool, worker.Info{Name: "new", Resource: "b", ID: "last", Fence: 1})
}

func TestSecondFencedWriteInOneCallIsRefused(t *testing.T) {
	pool := database(t)
	in := worker.Info{ID: "w1", Resource: "alice", Fence: 1}
	ctx := call(t, in)
	if err := pgfence.Write(ctx, pool, enter(ctx, "first")); err != nil {
		t.Fatal(err)
	}
	if err := pgfence.Write(ctx, pool, enter(ctx, "second")); !errors.Is(err, pgfence.ErrSecond) {
		t.Errorf("after a write: %v", err)
	}
	// In the second delivery the first write is skipped. Were the second one not
	// refused again, the function would succeed without it.
	in.Fence = 2
	ctx = call(t, in)
	if err := pgfence.Write(ctx, pool, enter(ctx, "first")); err != nil {
		t.Fatal(err)
	}
	if err := pgfence.WriteBatch(ctx, pool, []string{"second"}, enterAll(ctx)); !errors.Is(err, pgfence.ErrSecond) {
		t.Errorf("after a skip: %v", err)
	}
	ctx = call(t, worker.Info{ID: "w2", Resource: "alice", Fence: 3})
	err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
		return pgfence.Write(ctx, pool, enter(ctx, "inside"))
	})
	if !errors.Is(err, pgfence.ErrSecond) {
		t.Errorf("inside of another: %v", err)
	}
	expect(t, pool, "first")
}

func TestWriteThatFailedMayBeTriedAgainInTheSameCall(t *testing.T) {
	pool := database(t)
	ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
	oops := errors.New("oops")
	if err := pgfence.Write(ctx, pool, func(pgx.Tx) error { return oops }); err != oops { //nolint:errorlint // it must come back as it is
		t.Fatalf("the function's error came back as %v", err)
	}
	if err := pgfence.Write(ctx, pool, enter(ctx, "second try")); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "second try")
}

func TestWhereAFencedWriteCannotBeItSaysSo(t *testing.T) {
	pool := database(t)
	in := worker.Info{ID: "w1", Resource: "alice"}
	batch := in
	batch.Batch = []worker.Info{in}
	coalesced := batch
	coalesced.Coalesced = true
	nothing := func(pgx.Tx) error { t.Error("the function was called"); return nil }
	none := func(pgx.Tx, []string) error { t.Error("the function was called"); return nil }
	for what, err := range map[string]error{
		"Write outside":            pgfence.Write(t.Context(), pool, nothing),
		"WriteBatch outside":       pgfence.WriteBatch(t.Context(), pool, []string{"v"}, none),
		"Write for a batch":        pgfence.Write(call(t, batch), pool, nothing),
		"WriteBatch, too few":      pgfence.WriteBatch(call(t, batch), pool, nil, none),
		"WriteBatch, too many":     pgfence.WriteBatch(call(t, in), pool, []string{"v", "w"}, none),
		"WriteBatch with LastWins": pgfence.WriteBatch(call(t, coalesced), pool, []string{"v"}, none),
		"Write without an ID":      pgfence.Write(call(t, worker.Info{Resource: "alice"}), pool, nothing),
		"WriteBatch without an ID": pgfence.WriteBatch(call(t, worker.Info{}), pool, []string{"v"}, none),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "pgfence: ") {
			t.Errorf("%s: %v", what, err)
		}
		if strings.HasSuffix(what, "outside") != errors.Is(err, pgfence.ErrOutside) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFunctionThatDoesNotReturnNilLeavesNothingBehind(t *testing.T) {
	cfg := config(t)
	cfg.MaxConns = 1 // a connection that is not given back is missed at once
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	in := worker.Info{ID: "w1", Resource: "alice", Fence: 7}
	for what, end := range map[string]func() error{
		"error":  func() error { return errors.New("oops") },
		"panic":  func() error { panic("oops") },
		"Goexit": func() error { runtime.Goexit(); return nil },
	} {
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { _ = recover() }()
			ctx := call(t, in)
			err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
				if err := enter(ctx, what)(tx); err != nil {
					return err
				}
				return end()
			})
			if err == nil {
				t.Errorf("%s: nil", what)
			}
		})
		wg.Wait()
	}
	expect(t, pool)
	if seen := fences(t, pool); len(seen) != 0 {
		t.Errorf("fences %v", seen)
	}
	write(t, pool, in)
	expect(t, pool, "w1")
}

// Whoever commits on its own takes the effect out of the hands of the fence.
func TestFunctionMustNotEndTheTransaction(t *testing.T) {
	pool := database(t)
	in := worker.Info{ID: "w1", Resource: "alice", Fence: 7}
	raw := func(sql string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	for what, end := range map[string]func(context.Context, pgx.Tx) error{
		"Rollback":                    func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"ROLLBACK":                    raw("ROLLBACK"),
		"an error that was swallowed": func(ctx context.Context, tx pgx.Tx) error { _ = raw("nonsense")(ctx, tx); return nil },
	} {
		ctx := call(t, in)
		err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
			return errors.Join(enter(ctx, what)(tx), end(ctx, tx))
		})
		if err == nil {
			t.Errorf("%s: nil", what)
		}
	}
	expect(t, pool)
	for id, end := range map[string]func(context.Context, pgx.Tx) error{
		"Commit": func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"COMMIT": raw("COMMIT"),
	} {
		in.ID = id
		ctx := call(t, in)
		if err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error { return end(ctx, tx) }); err == nil {
			t.Errorf("%s: nil", id)
		}
	}
}

func TestWriteWithoutAResourceHasNoFenceAndStillTakesEffectOnce(t *testing.T) {
	pool := database(t)
	in := worker.Info{ID: "w1", Fence: 9}
	write(t, pool, in)
	in.Fence = 3 // there is no order to keep
	write(t, pool, in)
	in.ID = "w2"
	write(t, pool, in)
	expect(t, pool, "w1", "w2")
	if seen := fences(t, pool); len(seen) != 0 {
		t.Errorf("a write without a resource left fences %v", seen)
	}
}

// Nothing but the ID stands between two deliveries of a write without a
// resource.
func TestTwoDeliveriesAtOnceTakeEffectOnce(t *testing.T) {
	for _, resource := range []string{"", "alice"} {
		pool := database(t)
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				ctx := call(t, worker.Info{ID: "w1", Resource: resource, Fence: int64(n)})
				err := pgfence.Write(ctx, pool, enter(ctx, "once"))
				if err != nil && (resource == "" || !errors.Is(err, pgfence.ErrStale)) {
					t.Errorf("resource %q: %v", resource, err)
				}
			})
		}
		wg.Wait()
		expect(t, pool, "once")
	}
}

func TestMissingTablesAreNamed(t *testing.T) {
	pool := pgtest.Start(t).Pool(t)
	ctx := call(t, worker.Info{ID: "w1", Resource: "alice"})
	err := pgfence.Write(ctx, pool, enter(ctx, "nowhere"))
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42P01" || !strings.Contains(err.Error(), "deferlock_fence") {
		t.Errorf("without Setup: %v", err)
	}
}

// Folded with the write into one statement, the fence is passed before the other
// holder has committed, and the write sees the rows as they were then: an update
// was lost. That is why fence.sql is a statement of its own.
func TestFenceIsPassedBeforeAnythingIsRead(t *testing.T) {
	const folded = `
		WITH f AS (
			INSERT INTO deferlock_fence AS f (name, resource, fence) VALUES ($1, 'alice', $2)
			ON CONFLICT (name, resource) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence
			RETURNING 1
		)
		UPDATE account SET balance = (SELECT balance FROM account WHERE id = 'alice') + 1
		 WHERE id = 'alice' AND EXISTS (SELECT FROM f)`
	const apart = "UPDATE account SET balance = (SELECT balance FROM account WHERE id = 'alice') + 1 WHERE id = 'alice'"
	for what, later := range map[string]struct {
		want int
		do   func(ctx context.Context, db pgfence.DB) error
	}{
		"folded into one statement": {1, func(ctx context.Context, db pgfence.DB) error {
			return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, folded, name, 2)
				return err
			})
		}},
		"pgfence": {2, func(ctx context.Context, db pgfence.DB) error {
			return pgfence.Write(ctx, db, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, apart); return err })
		}},
	} {
		pool := database(t)
		execute(t, pool, "INSERT INTO account VALUES ('alice', 0)")
		write(t, pool, worker.Info{ID: "w0", Resource: "alice", Fence: 0})
		second := make(chan error, 1)
		ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
		err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, apart); err != nil {
				return err
			}
			go func() { second <- later.do(call(t, worker.Info{ID: "w2", Resource: "alice", Fence: 2}), pool) }()
			waitBlocked(t, pool)
			return nil
		})
		if err := errors.Join(err, <-second); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var balance int
		if err := pool.QueryRow(t.Context(), "SELECT balance FROM account").Scan(&balance); err != nil {
			t.Fatal(err)
		}
		if balance != later.want {
			t.Errorf("%s: balance %d after two writes, want %d", what, balance, later.want)
		}
	}
}

func TestBatchAfterACrashRunsOnlyWhatIsFresh(t *testing.T) {
	// {A, B} after a crash that had applied A: skipping both lost B, running
	// both applied A twice.
	pool := database(t)
	write(t, pool, worker.Info{ID: "A", Resource: "alice", Fence: 1})
	writeBatch(t, pool, 2, "A", "B")
	expect(t, pool, "A", "B")
	writeBatch(t, pool, 3, "A", "B", "C", "B")
	expect(t, pool, "A", "B", "C")
	writeBatch(t, pool, 4, "D", "D") // no lane has an ID twice; whoever does gets it once
	expect(t, pool, "A", "B", "C", "D")
	ctx := call(t, batchOf(5, "A", "B", "C"))
	err := pgfence.WriteBatch(ctx, pool, []string{"A", "B", "C"}, func(pgx.Tx, []string) error {
		t.Error("the function was called with nothing to do")
		return nil
	})
	if err != nil {
		t.Errorf("a batch that took effect before: %v", err)
	}
}

func TestBatchTakesEffectAsAWholeOrNotAtAll(t *testing.T) {
	pool := database(t)
	ctx := call(t, batchOf(1, "A", "B"))
	oops := errors.New("oops")
	err := pgfence.WriteBatch(ctx, pool, []string{"A", "B"}, func(tx pgx.Tx, fresh []string) error {
		return errors.Join(enterAll(ctx)(tx, fresh), oops)
	})
	if !errors.Is(err, oops) {
		t.Fatal(err)
	}
	expect(t, pool)
	write(t, pool, worker.Info{ID: "C", Resource: "alice", Fence: 3})
	ctx = call(t, batchOf(2, "A", "B"))
	if err := pgfence.WriteBatch(ctx, pool, []string{"A", "B"}, enterAll(ctx)); !errors.Is(err, pgfence.ErrStale) {
		t.Errorf("a stale batch got %v", err)
	}
	expect(t, pool, "C")
	writeBatch(t, pool, 4, "A", "B")
	expect(t, pool, "C", "A", "B")
}

// The newest of a batch stands for all of it: were only its own ID recorded, the
// others would take effect when they are delivered again, over newer ones.
func TestLastWinsRecordsEveryIDOfItsBatch(t *testing.T) {
	pool := database(t)
	lastWins := func(fence int64, ids ...string) {
		t.Helper()
		in := batchOf(fence, ids...)
		err := worker.LastWins(func(ctx context.Context, v string) error {
			return pgfence.Write(ctx, pool, enter(ctx, v))
		})(call(t, in), ids)
		if err != nil {
			t.Fatal(err)
		}
	}
	lastWins(1, "A", "B", "C")
	expect(t, pool, "C")
	for _, id := range []string{"A", "B", "C"} {
		if yes, err := pgfence.AppliedTo(t.Context(), pool, name, "alice", id); err != nil || !yes {
			t.Errorf("%s: %v, %v", id, yes, err)
		}
	}
	lastWins(2, "A", "B")      // delivered again
	lastWins(3, "C", "D", "E") // some of it again
	expect(t, pool, "C", "E")
	// F was put aside and comes back behind E, which replaced it.
	lastWins(4, "F", "E")
	expect(t, pool, "C", "E")
	lastWins(5, "F")
	expect(t, pool, "C", "E")
	if !slices.Equal(fences(t, pool), []int64{4}) {
		t.Errorf("fences %v", fences(t, pool))
	}
}
