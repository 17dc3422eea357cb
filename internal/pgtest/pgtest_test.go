package pgtest_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/deferlock/deferlock/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestTestsDoNotSeeEachOthersTables(t *testing.T) {
	s := pgtest.Start(t)
	for range 2 {
		if _, err := s.Pool(t).Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
			t.Error(err)
		}
	}
}

func TestPrivateServerHasItsSettingsAndIsGoneAfterItsTest(t *testing.T) {
	var url, dir string
	t.Run("test", func(t *testing.T) {
		s := pgtest.Private(t, "fsync=on", "max_connections=17")
		url = s.URL()
		pool := s.Pool(t)
		for name, want := range map[string]string{"fsync": "on", "max_connections": "17"} {
			var got string
			if err := pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s, %v", name, got, err)
			}
		}
		if err := pool.QueryRow(t.Context(), "SELECT current_setting('unix_socket_directories')").Scan(&dir); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(url, "postgres://") {
		t.Errorf("%s was left behind by %s: %v", dir, url, err)
	}
}

func TestReplyThatIsLostIsLostAfterTheServerHasDoneItsPart(t *testing.T) {
	s := pgtest.Start(t)
	schema := s.Schema(t)
	var line pgtest.Line
	cfg := s.Config(t, schema)
	line.Lead(cfg)
	pool := pgtest.Connect(t, cfg)
	line.LoseReply("CREATE TABLE")
	if tag, err := pool.Exec(t.Context(), "CREATE TABLE done ()"); err == nil {
		t.Errorf("the reply was not lost: %v", tag)
	}
	if _, err := pgtest.Connect(t, s.Config(t, schema)).Exec(t.Context(), "SELECT FROM done"); err != nil {
		t.Errorf("the statement was not carried out: %v", err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT FROM done"); err != nil {
		t.Errorf("the pool did not recover: %v", err)
	}
	before := line.RoundTrips()
	if _, err := pool.Exec(t.Context(), "SELECT 1; SELECT 2"); err != nil {
		t.Error(err)
	}
	if n := line.RoundTrips() - before; n != 1 {
		t.Errorf("%d round trips, want 1", n)
	}
}
