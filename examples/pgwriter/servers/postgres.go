package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoPostgres says that there is no way to a Postgres here, and lists the
// ways there could be.
var ErrNoPostgres = errors.New("no Postgres")

// Postgres returns the Postgres at DATABASE_URL; or a temporary cluster made
// with PostgreSQL's programs, if they are on this machine; or a container; or a
// cluster made with programs that it downloads. It calls say before what takes
// long. Its error lists what was tried, and what can be done.
//
// What it starts does not wait for the disk at a commit: fsync guards against a
// power cut, and the server does not live that long.
func Postgres(ctx context.Context, say func(string)) (*Server, error) {
	return postgres(ctx, wanted{say: say, fsync: "off"})
}

// DurablePostgres is Postgres for those who measure what a commit costs: what it
// starts does wait for the disk, as a server in production does. How Postgres is
// set up at DATABASE_URL is left as it is.
func DurablePostgres(ctx context.Context, say func(string)) (*Server, error) {
	return postgres(ctx, wanted{say: say, fsync: "on"})
}

// wanted is which Postgres is to be started, and who is told of what takes long.
type wanted struct {
	say   func(string)
	fsync string // "on" or "off"
}

func postgres(ctx context.Context, w wanted) (*Server, error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return foundPostgres(ctx, url)
	}
	ways := []struct {
		name  string
		start func(context.Context, wanted) (*Server, error)
	}{
		{"PostgreSQL programs on this machine", installedPostgres},
		{"a container", postgresContainer},
		{"a download", downloadedPostgres},
	}
	tried := ""
	for _, way := range ways {
		s, err := way.start(ctx, w)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		tried += fmt.Sprintf("  - %s: %v\n", way.name, err)
	}
	return nil, fmt.Errorf(`%w could be found or started. What was tried:
%sAny one of these helps:
  - set DATABASE_URL, e.g. postgres://user:password@localhost:5432/postgres (a schema is made there, and removed)
  - install PostgreSQL: apt-get install postgresql, dnf install postgresql-server, brew install postgresql
  - start Docker
  - let this machine reach https://repo1.maven.org, where embedded-postgres finds its programs`, ErrNoPostgres, tried)
}

func foundPostgres(ctx context.Context, url string) (*Server, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("DATABASE_URL is no address of a Postgres: want postgres://user:password@host:port/database")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := pingPostgres(ctx, url); err != nil {
		return nil, fmt.Errorf("the Postgres of DATABASE_URL: %w", err)
	}
	return &Server{URL: url, About: fmt.Sprintf("DATABASE_URL, %s:%d", cfg.Host, cfg.Port), Found: true}, nil
}

func pingPostgres(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return db.Close(ctx)
}
