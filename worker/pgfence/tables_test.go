package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

func TestAppliedTellsWhatTookEffect(t *testing.T) {
	pool := database(t)
	write(t, pool, worker.Info{ID: "w1", Resource: "alice"})
	write(t, pool, worker.Info{ID: "w2"})
	ctx := call(t, worker.Info{ID: "w3", Resource: "alice"})
	_ = pgfence.Write(ctx, pool, func(pgx.Tx) error { return errors.New("oops") })
	for _, c := range []struct {
		name, id, resource string
		any, on            bool
	}{
		{name, "w1", "alice", true, true},
		{name, "w1", "bob", true, false},
		{name, "w1", "", true, false},
		{name, "w2", "", true, true},
		{name, "w2", "alice", true, false},
		{name, "w3", "alice", false, false},
		{"payments", "w1", "alice", false, false},
	} {
		yes, err := pgfence.Applied(t.Context(), pool, c.name, c.id)
		if err != nil || yes != c.any {
			t.Errorf("Applied(%q, %q): %v, %v", c.name, c.id, yes, err)
		}
		yes, err = pgfence.AppliedTo(t.Context(), pool, c.name, c.resource, c.id)
		if err != nil || yes != c.on {
			t.Errorf("AppliedTo(%q, %q, %q): %v, %v", c.name, c.resource, c.id, yes, err)
		}
	}
}

// Two CREATE TABLE IF NOT EXISTS at once fail with a duplicate key in a catalog.
func TestSetupMayBeCalledByAnyNumberOfProcessesAtOnce(t *testing.T) {
	pool := pgtest.Start(t).Pool(t)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := pgfence.Setup(t.Context(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	prepare(t, pool)
	write(t, pool, worker.Info{ID: "w1", Resource: "alice"})
}

// An application's own role has no right to create tables, and a Setup at every
// start must not wait for writes that are under way, nor hold them up.
func TestSetupOfTablesThatAreThereNeedsNoRightAndNoLock(t *testing.T) {
	pool := database(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "LOCK TABLE deferlock_applied, deferlock_fence IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET TRANSACTION READ ONLY"); err != nil {
				return err
			}
			return pgfence.Setup(ctx, tx)
		})
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSetupWorksOnAConnectionAndInATransaction(t *testing.T) {
	conn := acquire(t, pgtest.Start(t).Pool(t))
	if err := pgfence.Setup(t.Context(), conn); err != nil {
		t.Error(err)
	}
	pool := pgtest.Start(t).Pool(t)
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return pgfence.Setup(t.Context(), tx) })
	if err != nil {
		t.Error(err)
	}
	if _, err := pgfence.Applied(t.Context(), pool, name, "w1"); err != nil {
		t.Error(err)
	}
}

func TestSchemaCanBeRunByHandAndAgain(t *testing.T) {
	pool := pgtest.Start(t).Pool(t)
	for range 2 {
		execute(t, pool, pgfence.SQL().Schema)
	}
	prepare(t, pool)
	write(t, pool, worker.Info{ID: "w1", Resource: "alice"})
}

// What another driver does with the published statements and what this package
// does exclude each other.
func TestPublishedStatementsFenceAndSkip(t *testing.T) {
	pool := database(t)
	sql := pgfence.SQL()
	other := func(id string, fence int64) (outcome string) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(t.Context(), sql.Fence, name, "alice", fence, 2500, 5000)
			if err != nil || tag.RowsAffected() == 0 {
				outcome = "stale"
				return errors.Join(err, tx.Rollback(t.Context()))
			}
			tag, err = tx.Exec(t.Context(), sql.Record, name, "alice", id, []byte("hash"))
			if err != nil || tag.RowsAffected() == 0 {
				outcome = "skipped"
				return errors.Join(err, tx.Rollback(t.Context()))
			}
			outcome = "done"
			return enter(t.Context(), id)(tx)
		})
		if err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Fatal(err)
		}
		return outcome
	}
	write(t, pool, worker.Info{ID: "w1", Resource: "alice", Fence: 10})
	for i, want := range []string{"stale", "skipped", "done", "skipped"} {
		id, fence := []string{"w2", "w1", "w2", "w2"}[i], []int64{9, 10, 11, 12}[i]
		if got := other(id, fence); got != want {
			t.Errorf("%s with fence %d: %s, want %s", id, fence, got, want)
		}
	}
	ctx := call(t, worker.Info{ID: "w3", Resource: "alice", Fence: 10})
	if err := pgfence.Write(ctx, pool, enter(ctx, "w3")); !errors.Is(err, pgfence.ErrStale) {
		t.Error(err)
	}
	expect(t, pool, "w1", "w2")
}

func TestEveryStatementSaysWhatItIs(t *testing.T) {
	files, err := filepath.Glob("*.sql")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %q, %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), "-- "+f+": ") {
			t.Errorf("%s does not begin with its name and what it does", f)
		}
	}
	v := reflect.ValueOf(pgfence.SQL())
	for i := range v.NumField() {
		if !strings.HasPrefix(v.Field(i).String(), "-- ") {
			t.Errorf("SQL().%s has no header", v.Type().Field(i).Name)
		}
	}
}

// age makes what is applied older.
func age(t *testing.T, pool *pgxpool.Pool, by string, like string) {
	t.Helper()
	execute(t, pool, "UPDATE deferlock_applied SET applied_at = applied_at - $1::interval WHERE id LIKE $2", by, like)
}

func TestPruneForgetsWhatIsOldAndNothingElse(t *testing.T) {
	pool := database(t)
	const old = 2345 // several transactions
	execute(t, pool, `INSERT INTO deferlock_applied (name, id, resource, payload_hash, applied_at)
		SELECT 'accounts', 'old' || i, 'alice', '', now() - interval '30 days' - make_interval(secs => i % 7) FROM generate_series(1, $1) i`, old)
	write(t, pool, worker.Info{ID: "new", Resource: "alice"})
	write(t, pool, worker.Info{ID: "kept", Resource: "alice"})
	age(t, pool, "29 days 23:00", "kept")
	if n, err := pgfence.Prune(t.Context(), pool, 0); n != old || err != nil {
		t.Errorf("%d, %v; want %d", n, err, old)
	}
	for id, want := range map[string]bool{"old1": false, "old2345": false, "new": true, "kept": true} {
		if yes, err := pgfence.Applied(t.Context(), pool, name, id); err != nil || yes != want {
			t.Errorf("%s: %v, %v", id, yes, err)
		}
	}
	if n, err := pgfence.Prune(t.Context(), pool, 24*time.Hour); n != 1 || err != nil {
		t.Errorf("%d, %v; want 1", n, err)
	}
	if n, err := pgfence.Prune(t.Context(), pool, 0); n != 0 || err != nil {
		t.Errorf("%d, %v; want 0", n, err)
	}
}

// A row that somebody has in hand is passed over, and a fence is never touched.
func TestPruneWaitsForNobody(t *testing.T) {
	pool := database(t)
	for _, id := range []string{"a", "b", "c"} {
		write(t, pool, worker.Info{ID: id, Resource: "alice", Fence: 5})
	}
	age(t, pool, "31 days", "%")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT FROM deferlock_applied WHERE id = 'b' FOR UPDATE"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		n, err := pgfence.Prune(ctx, pool, 0)
		if n != 2 {
			return fmt.Errorf("%d are gone, want 2", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if seen := fences(t, pool); len(seen) != 1 || seen[0] != 5 {
		t.Errorf("fences %v", seen)
	}
}

func TestSeveralPrunesAtOnceDoEachRowOnce(t *testing.T) {
	pool := database(t)
	const old = 8000
	execute(t, pool, `INSERT INTO deferlock_applied (name, id, resource, payload_hash, applied_at)
		SELECT 'accounts', i::text, '', '', now() - interval '40 days' FROM generate_series(1, $1) i`, old)
	var wg sync.WaitGroup
	counts := make([]int64, 4)
	for i := range counts {
		wg.Go(func() {
			var err error
			if counts[i], err = pgfence.Prune(t.Context(), pool, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	last, err := pgfence.Prune(t.Context(), pool, 0)
	if err != nil {
		t.Error(err)
	}
	for _, n := range counts {
		last += n
	}
	if last != old {
		t.Errorf("%d rows were counted as gone, want %d", last, old)
	}
}

func TestPruneRefusesWhatIsNotSafe(t *testing.T) {
	pool := database(t)
	for _, d := range []time.Duration{-time.Second, time.Nanosecond, 59 * time.Minute} {
		if _, err := pgfence.Prune(t.Context(), pool, d); err == nil || !strings.Contains(err.Error(), "olderThan") {
			t.Errorf("olderThan %v: %v", d, err)
		}
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := pgfence.Prune(t.Context(), tx, 0)
		return err
	})
	if err == nil {
		t.Error("a transaction that cannot be short was accepted")
	}
}

// Fences are updated in place: were an updated column indexed, or the pages full,
// each write would leave a dead entry in the index.
func TestFenceUpdatesTouchNoIndex(t *testing.T) {
	pool := database(t)
	execute(t, pool, "INSERT INTO deferlock_fence SELECT 'accounts', i, 0 FROM generate_series(0, 2999) i")
	conn := acquire(t, pool)
	for n := range 300 {
		write(t, conn, worker.Info{ID: fmt.Sprint(n), Resource: fmt.Sprint(n * 10), Fence: int64(n)})
	}
	var updates, hot int64
	redistest.Wait(t, "the statistics have arrived", func() bool {
		err := pool.QueryRow(t.Context(), `
			SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
			 WHERE relid = 'deferlock_fence'::regclass`).Scan(&updates, &hot)
		if err != nil {
			t.Fatal(err)
		}
		return updates >= 300
	})
	if hot < updates*99/100 {
		t.Errorf("%d of %d updates touched no index", hot, updates)
	}
}

// A server that reports commits before they are on the disk loses what deferlock
// takes for done. Whoever sets it up is warned each time, and nobody else is.
func TestSetupWarnsOfCommitsThatAreNotSynchronous(t *testing.T) {
	server := pgtest.Start(t)
	schema := server.Schema(t)
	for _, c := range []struct {
		setting string
		warned  bool
	}{{"on", false}, {"off", true}, {"off", true}, {"local", false}} {
		var mu sync.Mutex // guards said
		var said []string
		cfg := server.Config(t, schema)
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = c.setting
		cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			if n.Severity == "WARNING" {
				said = append(said, n.Message)
			}
		}
		if err := pgfence.Setup(t.Context(), pgtest.Connect(t, cfg)); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if warned := strings.Contains(strings.Join(said, ""), "synchronous_commit is off"); warned != c.warned {
			t.Errorf("%s: it said %q", c.setting, said)
		}
		mu.Unlock()
	}
}
