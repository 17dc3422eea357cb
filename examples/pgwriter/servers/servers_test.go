package servers_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

// miniredis stands still by default: the locks of killed processes never ended,
// and their accounts waited for ever.
func TestWithoutARedisServerThereIsAnImitationInWhichLocksEnd(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("REDIS_SERVER", "")
	t.Setenv("REDIS_URL", "")
	s, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if !strings.Contains(s.About, "imitation") || !strings.Contains(s.About, "Figures want a real one") {
		t.Errorf("it does not say what it is: %q", s.About)
	}
	rdb := client(t, s)
	if err := rdb.Set(t.Context(), "lock", "held", 20*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	patience := time.After(10 * time.Second)
	for !errors.Is(rdb.Get(t.Context(), "lock").Err(), redis.Nil) {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatal("the lock does not end")
		}
	}
}

func TestRedisURLIsUsedAndSurvivesStop(t *testing.T) {
	t.Setenv("REDIS_URL", "")
	own, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Stop()
	t.Setenv("REDIS_URL", own.URL)
	s, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !s.Found || s.URL != own.URL {
		t.Errorf("%+v", s)
	}
	s.Stop()
	if err := client(t, s).Ping(t.Context()).Err(); err != nil {
		t.Errorf("Stop has ended a Redis that was there before: %v", err)
	}
}

func TestPasswordsAreNotRepeatedInErrors(t *testing.T) {
	t.Setenv("REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
	if _, err := servers.Redis(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("REDIS_URL: %v", err)
	}
	for _, url := range []string{"postgres://u:hunter2@127.0.0.1:1/x", "postgres://u:hunter2@127.0.0.1:port/x"} {
		t.Setenv("DATABASE_URL", url)
		if _, err := servers.Postgres(t.Context(), func(string) {}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("DATABASE_URL: %v", err)
		}
	}
}

// Where commits are measured they have to cost what they do elsewhere.
func TestDurablePostgresWaitsForTheDisk(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	s, err := servers.DurablePostgres(t.Context(), func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	db, err := pgx.Connect(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	for _, setting := range []string{"fsync", "synchronous_commit"} {
		var is string
		if err := db.QueryRow(t.Context(), "SHOW "+setting).Scan(&is); err != nil || is != "on" {
			t.Errorf("%s is %q (%v)", setting, is, err)
		}
	}
}

func TestPostgresComesUpAndIsGoneAfterStop(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	s, err := servers.Postgres(t.Context(), func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgx.Connect(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if _, err := pgx.Connect(t.Context(), s.URL); err == nil {
		t.Error("it still answers")
	}
}

func TestWithoutAWayToPostgresTheWaysAreListed(t *testing.T) {
	servers.HidePrograms(t.Cleanup)
	t.Setenv("DATABASE_URL", "")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/none.sock")
	t.Setenv("HOME", t.TempDir()) // where embedded-postgres keeps what it has downloaded
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("https_proxy", "http://127.0.0.1:1")
	_, err := servers.Postgres(t.Context(), func(string) {})
	if !errors.Is(err, servers.ErrNoPostgres) {
		t.Fatalf("error %v, want ErrNoPostgres", err)
	}
	for _, want := range []string{"DATABASE_URL", "apt-get install postgresql", "start Docker", "repo1.maven.org"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q:\n%v", want, err)
		}
	}
}

func TestAnInterruptedStartLeavesNothing(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := servers.Postgres(ctx, func(string) {}); !errors.Is(err, context.Canceled) {
		if s != nil {
			s.Stop()
		}
		t.Errorf("error %v, want that it was cancelled", err)
	}
}

func TestTailKeepsTheLastWords(t *testing.T) {
	var tail servers.Tail
	cmd := exec.Command("go", "tool", "no-such-tool")
	cmd.Stderr = &tail
	if err := cmd.Run(); err == nil {
		t.Fatal("the command did not fail")
	}
	if !strings.Contains(tail.String(), "no-such-tool") {
		t.Errorf("kept %q", &tail)
	}
	_, _ = tail.Write([]byte(strings.Repeat("x", 100_000) + "end"))
	if got := tail.String(); len(got) > 5000 || !strings.HasSuffix(got, "end") {
		t.Errorf("kept %d bytes", len(got))
	}
}

func client(t *testing.T, s *servers.Server) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
