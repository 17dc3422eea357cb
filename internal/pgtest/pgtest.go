// Package pgtest gives tests the Postgres they run against. It is imported by
// tests only.
//
// [Start] returns the server of the test process: the one that DATABASE_URL
// points to, or else a temporary cluster that is made with the PostgreSQL
// programs of the machine when it is first asked for, listens on a socket that
// only this user can reach, and is stopped and removed by [Main]. Each test gets
// a schema of its own in it, see [Server.Pool], and so cannot see another one's
// tables. A test fails if there is neither a DATABASE_URL nor a PostgreSQL.
//
//   - [Start], [Private]: servers
//   - [Server.Pool], [Server.Schema]: an empty schema for a test
//   - [Line]: lost replies, round trips
package pgtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/internal/redistest"
)

// Server is a Postgres.
type Server struct {
	url     string
	cluster *cluster // nil if it is not ours
}

// shared is the server of this process.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main is redistest's Main, and stops the server behind the tests. It is a
// package's whole TestMain.
func Main(m *testing.M) { redistest.Main(stopping{m}) }

type stopping struct{ m *testing.M }

// Run runs the tests and stops the server.
func (s stopping) Run() int {
	defer func() {
		if srv := shared.server; srv != nil && srv.cluster != nil {
			srv.cluster.stop()
		}
	}()
	return s.m.Run()
}

// Start returns the server of this test process. It does without fsync: no test
// pulls the plug.
func Start(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		if url := os.Getenv("DATABASE_URL"); url != "" {
			shared.server = &Server{url: url}
			return
		}
		shared.server, shared.err = launch("fsync=off")
	})
	if shared.err != nil {
		t.Fatalf("pgtest: %v", shared.err)
	}
	return shared.server
}

// Private starts a server for one test alone, with settings such as "fsync=on".
// It is stopped and removed when the test ends.
func Private(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := launch(settings...)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(s.cluster.stop)
	return s
}

func launch(settings ...string) (*Server, error) {
	c, err := newCluster(settings)
	if err != nil {
		return nil, err
	}
	return &Server{url: c.url(), cluster: c}, nil
}

// URL is how to reach the server.
func (s *Server) URL() string { return s.url }

// Schema makes an empty schema, which is dropped when the test ends, and returns
// its name. Who connects by [Server.Config] has it as search_path, and as
// application_name for tests that look at pg_stat_activity.
func (s *Server) Schema(t testing.TB) string {
	t.Helper()
	name := "test_" + strconv.FormatUint(rand.Uint64(), 36)
	s.admin(t, "CREATE SCHEMA "+name)
	t.Cleanup(func() { s.admin(t, "DROP SCHEMA "+name+" CASCADE") })
	return name
}

// Config is what a pool of connections to a schema is made of.
func (s *Server) Config(t testing.TB, schema string) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	cfg.ConnConfig.RuntimeParams["application_name"] = schema
	return cfg
}

// Pool returns a pool of connections to a new schema.
func (s *Server) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, s.Config(t, s.Schema(t)))
}

// Connect returns a pool that is closed when the test ends.
func Connect(t testing.TB, cfg *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// admin executes one statement on a connection of its own, also when the test is
// over.
func (s *Server) admin(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err == nil {
		_, err = conn.Exec(ctx, sql)
		err = errors.Join(err, conn.Close(ctx))
	}
	if err != nil {
		t.Errorf("pgtest: %s: %v", sql, err)
	}
}
