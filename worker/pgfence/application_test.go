package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// entry is the value of a write: a line for the ledger.
type entry struct {
	Account string
	Text    string
}

// application is a process with a worker, a Redis and a Postgres.
type application struct {
	pool   *pgxpool.Pool
	redis  *redistest.Server
	rdb    redis.UniversalClient
	worker *worker.Worker
	enter  *worker.Writer[entry]

	// before is called by the function before it writes, after when it has.
	before, after func(ctx context.Context, e entry)

	mu       sync.Mutex // guards attempts
	attempts []int
}

// newApplication has a Redis and a Postgres of its own. Its writes are lines for
// the ledger.
func newApplication(t *testing.T, cfg worker.Config) *application {
	t.Helper()
	s := redistest.Real(t)
	return applicationOn(t, s, s.Client(t), database(t), cfg)
}

func applicationOn(t *testing.T, s *redistest.Server, rdb redis.UniversalClient, pool *pgxpool.Pool, cfg worker.Config) *application {
	t.Helper()
	a := &application{pool: pool, redis: s, rdb: rdb}
	if err := a.wrap(cfg); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *application) wrap(cfg worker.Config) error {
	cfg.Name = name
	cfg.Logger = slog.New(slog.DiscardHandler)
	if cfg.Backoff == nil {
		cfg.Backoff = func(int) time.Duration { return 5 * time.Millisecond }
	}
	if cfg.Poll == 0 {
		cfg.Poll = 100 * time.Millisecond
	}
	var err error
	if a.worker, err = worker.New(a.rdb, cfg); err != nil {
		return err
	}
	a.enter, err = worker.Wrap(a.worker, a.write, worker.Kind[entry]{
		Name:           "entry",
		Resource:       func(e entry) string { return e.Account },
		IdempotencyKey: func(_ context.Context, e entry) string { return e.Text },
	})
	return err
}

func (a *application) write(ctx context.Context, e entry) error {
	if in, ok := worker.FromContext(ctx); ok {
		a.mu.Lock()
		a.attempts = append(a.attempts, in.Attempt)
		a.mu.Unlock()
	}
	if a.before != nil {
		a.before(ctx, e)
	}
	err := pgfence.Write(ctx, a.pool, enter(ctx, e.Text))
	if err == nil && a.after != nil {
		a.after(ctx, e)
	}
	return err
}

// do submits a write.
func (a *application) do(t testing.TB, account, text string) worker.Outcome {
	t.Helper()
	out, err := a.enter.Do(t.Context(), entry{account, text})
	if err != nil {
		t.Fatalf("do %q: %v", text, err)
	}
	return out
}

// push submits a write that does not run in the call.
func (a *application) push(t testing.TB, account, text string) {
	t.Helper()
	if _, err := a.enter.Push(t.Context(), entry{account, text}, 0); err != nil {
		t.Fatalf("push %q: %v", text, err)
	}
}

// run works the queue until the test ends.
func (a *application) run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.worker.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		redistest.Audit(t, a.rdb, name)
	})
}

// drained waits until nothing is deferred any more.
func (a *application) drained(t testing.TB) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("left: %q", left)
		}
	}()
	redistest.Wait(t, "the queue is empty", func() bool {
		keys, err := a.rdb.Keys(t.Context(), "{"+name+":0}:*").Result()
		left = slices.DeleteFunc(keys, func(k string) bool {
			return !strings.Contains(k, "}:write:") && !strings.Contains(k, "}:lock:")
		})
		return err == nil && len(left) == 0
	})
	dead, err := a.rdb.ZCard(t.Context(), "{"+name+":0}:dead").Result()
	if err != nil || dead != 0 {
		t.Errorf("%d dead letters, %v", dead, err)
	}
}

// started are the attempts that the function was called with.
func (a *application) started() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.attempts)
}

// environment tells another process of the application where everything is.
func (a *application) environment() []string {
	cfg := a.pool.Config().ConnConfig
	return []string{
		"PGFENCE_TEST_POSTGRES=" + cfg.ConnString(),
		"PGFENCE_TEST_SCHEMA=" + cfg.RuntimeParams["search_path"],
		"PGFENCE_TEST_REDIS=" + a.redis.Addr(),
	}
}

func connectAgain(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(os.Getenv("PGFENCE_TEST_POSTGRES"))
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = os.Getenv("PGFENCE_TEST_SCHEMA")
	return pgxpool.NewWithConfig(ctx, cfg)
}

// sameApplication is the application in another process.
func sameApplication(pool *pgxpool.Pool, cfg worker.Config) (*application, error) {
	a := &application{pool: pool, rdb: redis.NewClient(&redis.Options{Addr: os.Getenv("PGFENCE_TEST_REDIS")})}
	return a, a.wrap(cfg)
}

// holdAndStop is inside its transaction when it is stopped. It succeeds when its
// write is refused.
func holdAndStop(ctx context.Context, pool *pgxpool.Pool) error {
	a, err := sameApplication(pool, worker.Config{LockTTL: time.Second})
	if err != nil {
		return err
	}
	fn := func(ctx context.Context, e entry) error {
		return pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
			if err := enter(ctx, e.Text)(tx); err != nil {
				return err
			}
			fmt.Print(there)
			// It does not look at its context: only the server can stop it.
			late := context.WithoutCancel(ctx)
			<-ctx.Done()
			return enter(late, e.Text+" once more")(tx)
		})
	}
	w, err := worker.Wrap(a.worker, fn, worker.Kind[entry]{Name: "stopped", Resource: func(e entry) string { return e.Account }})
	if err != nil {
		return err
	}
	if _, err := w.Do(ctx, entry{"alice", "stopped"}); err == nil {
		return errors.New("the write of a holder that was stopped took effect")
	}
	return nil
}

// commitAndDie has committed its write and not yet acknowledged it when it is
// killed.
func commitAndDie(ctx context.Context, pool *pgxpool.Pool) error {
	a, err := sameApplication(pool, worker.Config{LockTTL: 300 * time.Millisecond})
	if err != nil {
		return err
	}
	a.after = func(context.Context, entry) {
		fmt.Print(there)
		<-ctx.Done() // which never comes
	}
	_, err = a.worker.RunOnce(ctx)
	return err
}
