package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const postgresProgram = "postgres"

// Postgres is one Postgres of a test.
type Postgres struct {
	*daemon
	port int
}

// NewPostgres starts a Postgres that a test may do anything to. Settings are
// like "synchronous_commit=off"; by default it does not wait for the disk, which
// kill -9 cannot tell: the kernel still has the data.
func NewPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	p, err := newPostgres(func() string { return directory(t, mustAccount(t)) }, settings)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	t.Cleanup(func() { p.end(syscall.SIGQUIT) })
	if err := p.start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return p
}

func mustAccount(t testing.TB) *account {
	t.Helper()
	who, err := unprivileged()
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	return who
}

// newPostgres makes a cluster and prepares its server.
func newPostgres(makeDir func() string, settings []string) (*Postgres, error) {
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	port, err := freePort(0)
	if err != nil {
		return nil, err
	}
	dir := makeDir()
	data := filepath.Join(dir, "data")
	if err := initdb(dir, data, who); err != nil {
		return nil, err
	}
	args := []string{
		"-D", data, "-p", strconv.Itoa(port), "-h", "127.0.0.1", "-k", dir,
		"-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300", "-c", "shared_buffers=32MB",
		"-c", "max_wal_size=256MB", "-c", "autovacuum=off", "-c", "log_min_messages=warning",
	}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	p := &Postgres{port: port}
	p.daemon = &daemon{up: p.answers, spec: spec{
		program: postgresProgram, image: postgresImage(), dir: dir, user: who, args: args,
	}}
	return p, nil
}

// initdb makes a cluster in data. It takes a second, so it is done once for a
// process and copied from then on.
func initdb(dir, data string, who *account) error {
	template.Lock()
	defer template.Unlock()
	if template.files == nil {
		r, err := launch(spec{program: "initdb", image: postgresImage(), dir: dir, user: who, args: []string{
			"-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions",
		}})
		if err != nil {
			return err
		}
		<-r.gone()
		if _, err := os.Stat(filepath.Join(data, "global", "pg_control")); err != nil {
			return fmt.Errorf("initdb: %w\n%s", err, r.said())
		}
		template.files, err = readTree(data)
		return err
	}
	return writeTree(data, template.files, who)
}

// template is a cluster as initdb makes it, in memory: 40 MB that nobody has to
// remove.
var template struct {
	sync.Mutex
	files []file
}

type file struct {
	name string
	dir  bool
	data []byte
}

func readTree(root string) (files []file, err error) {
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f := file{name: name, dir: d.IsDir()}
		if !f.dir {
			f.data, err = os.ReadFile(path)
		}
		files = append(files, f)
		return err
	})
	return files, err
}

func writeTree(root string, files []file, who *account) error {
	for _, f := range files {
		path := filepath.Join(root, f.name)
		var err error
		if f.dir {
			err = os.Mkdir(path, 0o700)
		} else {
			err = os.WriteFile(path, f.data, 0o600)
		}
		if err == nil && who != nil {
			err = os.Chown(path, int(who.uid), int(who.gid))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Postgres) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	db, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return err
	}
	return db.Close(ctx)
}

// URL is the server's address with what is needed to use it.
func (p *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.port)
}

// Addr is the server's host:port.
func (p *Postgres) Addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// Kill ends the server and all its backends as kill -9 of each does.
func (p *Postgres) Kill() {
	// The postmaster's death is noticed by its backends, each when it next
	// waits: the port is free, and the memory given back, once they are gone.
	p.end(syscall.SIGKILL)
	poll(patience, func() bool { return free(p.port) == nil })
}

// Start starts a server that was killed, on the same port and files, and
// returns when it answers.
func (p *Postgres) Start(t testing.TB) {
	t.Helper()
	// The killed one's last backends may still hold its shared memory.
	var err error
	if !poll(patience, func() bool { err = p.start(); return err == nil }) {
		t.Fatalf("servers: %v", err)
	}
}

// Exec has the server carry out one statement, and fails the test if it does
// not.
func (p *Postgres) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	execute(t, p.URL(), sql, args...)
}

func execute(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	db, err := pgx.Connect(ctx, url)
	if err == nil {
		defer func() { _ = db.Close(ctx) }()
		_, err = db.Exec(ctx, sql, args...)
	}
	if err != nil {
		t.Fatalf("servers: %s: %v", sql, err)
	}
}

var databases atomic.Int64

// AnyDatabase is an empty database of the test's own in a Postgres that the test
// leaves alone: the one at DATABASE_URL, or one that this process's tests share.
// It is dropped when the test ends.
func AnyDatabase(t testing.TB) Database {
	t.Helper()
	server := address(t, "DATABASE_URL")
	if server == "" {
		server = shared(t).URL()
	}
	cfg, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal("servers: DATABASE_URL is no address of a Postgres: want postgres://user:password@host:port/database")
	}
	name := fmt.Sprintf("deferlock_test_%d_%d", os.Getpid(), databases.Add(1))
	execute(t, server, "CREATE DATABASE "+name+" STRATEGY = wal_log")
	t.Cleanup(func() { execute(t, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return Database(fmt.Sprintf("postgres://%s@%s:%d/%s?sslmode=disable", userinfo(cfg), cfg.Host, cfg.Port, name))
}

// Database is a test's own in a Postgres that others use too.
type Database string

// URL is the database's address with what is needed to use it.
func (d Database) URL() string { return string(d) }

// Exec has the database carry out some statements, and fails the test if it
// does not.
func (d Database) Exec(t testing.TB, sql string) {
	t.Helper()
	execute(t, d.URL(), sql)
}
