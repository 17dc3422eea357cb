package main

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

// TestMain lets the test binary be a worker process, as the program itself
// would be.
func TestMain(m *testing.M) {
	if os.Getenv(processKey) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var small = []string{"-processes", "2", "-tasks", "200", "-resources", "4"}

// Every tenth task fails twice: asynq must not hear of it, and none may take
// effect twice or not at all.
func TestTasksThatFailTakeEffectOnceWithoutAsynqsRetry(t *testing.T) {
	var out, problems bytes.Buffer
	if code := run(t.Context(), small, &out, &problems); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, &out, &problems)
	}
	if n := strings.Count(out.String(), "  ok  "); n != len(checks)+2 || strings.Contains(out.String(), "WRONG") {
		t.Errorf("%d findings are good, want %d:\n%s", n, len(checks)+2, &out)
	}
	// 20 tasks are started twice more; somebody who is stopped may be, too.
	repeats := regexp.MustCompile(`(\d+) starts were repeats`).FindStringSubmatch(out.String())
	if repeats == nil {
		t.Fatalf("the report does not say how many starts were repeats:\n%s", &out)
	}
	if n, err := strconv.Atoi(repeats[1]); err != nil || n < 40 {
		t.Errorf("want at least 40 repeated starts:\n%s", &out)
	}
}

func TestServersThatWereThereAreLeftAsTheyWere(t *testing.T) {
	ctx := t.Context()
	cache, database := start(t)
	t.Setenv("REDIS_URL", cache.URL)
	t.Setenv("DATABASE_URL", database.URL)
	var out, problems bytes.Buffer
	if code := run(ctx, small, &out, &problems); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, &out, &problems)
	}
	opts, err := redis.ParseURL(cache.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	if keys, err := rdb.Keys(ctx, "*asynqworker*").Result(); err != nil || len(keys) > 0 {
		t.Errorf("Redis still has %q (%v)", keys, err)
	}
	if queues, err := asynq.NewInspectorFromRedisClient(rdb).Queues(); err != nil || len(queues) > 0 {
		t.Errorf("asynq still has the queues %q (%v)", queues, err)
	}
	db, err := pgx.Connect(ctx, database.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	var schemas int
	err = db.QueryRow(ctx, `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'asynqworker%'`).Scan(&schemas)
	if err != nil || schemas > 0 {
		t.Errorf("Postgres still has %d schemas (%v)", schemas, err)
	}
}

func TestChecksFindPlantedViolations(t *testing.T) {
	_, database := start(t)
	ctx := t.Context()
	db, err := openLedger(ctx, database.URL, "planted")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := createLedger(ctx, db, "planted"); err != nil {
		t.Fatal(err)
	}
	const history = `
		INSERT INTO accounts VALUES ('a', 15);
		INSERT INTO tasks VALUES ('task-1', 'a', 10), ('task-2', 'a', 5);
		INSERT INTO entries (task, account, amount, attempt, before, after) VALUES ('task-1', 'a', 10, 1, 0, 10), ('task-2', 'a', 5, 1, 10, 15);`
	for i, plant := range []string{
		`UPDATE entries SET task = 'task-0' WHERE task = 'task-1'`,
		`INSERT INTO entries (task, account, amount, attempt, before, after) VALUES ('task-2', 'a', 5, 2, 15, 20)`,
		`UPDATE entries SET before = 0 WHERE task = 'task-2'`,
		`UPDATE accounts SET balance = 16`,
	} {
		if _, err := db.Exec(ctx, `TRUNCATE accounts, tasks, entries;`+history+plant); err != nil {
			t.Fatal(err)
		}
		for k, c := range checks {
			var n int
			if err := db.QueryRow(ctx, c.sql).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if (n > 0) != (k == i) {
				t.Errorf("%s: the check that %s counts %d", plant, c.good, n)
			}
		}
	}
}

// A payload that cannot be read will not be readable later.
func TestUnreadableTaskIsNotTriedAgain(t *testing.T) {
	err := handle(nil)(t.Context(), asynq.NewTask("credit", []byte("{")))
	if !errors.Is(err, asynq.SkipRetry) {
		t.Errorf("error %v, want SkipRetry", err)
	}
}

// start starts both servers for a test.
func start(t *testing.T) (cache, database *servers.Server) {
	t.Helper()
	cache, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Stop)
	database, err = servers.Postgres(t.Context(), func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Stop)
	return cache, database
}
