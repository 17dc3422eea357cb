package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is the Redis that everything runs against.
type server struct {
	options redis.Options
	about   string // what it is, for the report
	stop    func()
}

// findServer returns the Redis at url, or one that it starts if url is "". It
// is empty: what it has in the databases that are used is emptied many times.
func findServer(ctx context.Context, url string) (*server, error) {
	if url == "" {
		return startServer(ctx)
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("want redis://user:password@host:port/db") // the URL may have a password in it
	}
	s := &server{options: redis.Options{
		Addr: opts.Addr, Username: opts.Username, Password: opts.Password, DB: opts.DB, TLSConfig: opts.TLSConfig,
	}, about: "a Redis that was there", stop: func() {}}
	for db := range databases {
		rdb := s.client(db, 1)
		n, err := rdb.DBSize(ctx).Result()
		_ = rdb.Close()
		if err != nil {
			return nil, fmt.Errorf("database %d of the Redis at %s: %w", opts.DB+db, opts.Addr, err)
		}
		if n > 0 {
			return nil, fmt.Errorf("database %d of the Redis at %s has %d keys: bench empties the databases it uses, %d to %d, so they have to be empty",
				opts.DB+db, opts.Addr, n, opts.DB, opts.DB+databases-1)
		}
	}
	return s, nil
}

// databases is how many databases are used, from the one of the URL on.
const databases = 4

func startServer(ctx context.Context) (*server, error) {
	program, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		return nil, fmt.Errorf("no Redis was named with -redis or REDIS_URL, and there is no redis-server to start: %w", err)
	}
	dir, err := os.MkdirTemp("", "deferlock-bench-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// Its log goes to a file, and it keeps nothing on the disk.
	cmd := exec.Command(program, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--logfile", "log",
		"--save", "", "--appendonly", "no", "--daemonize", "no")
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &server{
		options: redis.Options{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))},
		about:   "started for it, without persistence, on loopback",
		stop: func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
			_ = os.RemoveAll(dir)
		},
	}
	if err := s.answers(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// answers waits until the server does.
func (s *server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rdb := s.client(0, 1)
	defer rdb.Close()
	for {
		err := rdb.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the redis-server that was started does not answer: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// optionsOf returns what a client of one of the databases needs.
func (s *server) optionsOf(db, pool int) redis.Options {
	opts := s.options
	opts.DB += db
	opts.PoolSize = pool
	opts.ContextTimeoutEnabled = true
	opts.DisableIdentity = true
	return opts
}

func (s *server) client(db, pool int) *redis.Client {
	opts := s.optionsOf(db, pool)
	return redis.NewClient(&opts)
}
