package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Redis returns the Redis at REDIS_URL; or a redis-server, from the PATH or at
// REDIS_SERVER, that it starts; or an imitation inside this process, to which
// others can connect as long as this one lives.
func Redis(ctx context.Context) (*Server, error) {
	if url := os.Getenv("REDIS_URL"); url != "" {
		return foundRedis(ctx, url)
	}
	program, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err == nil {
		return ownRedis(ctx, program)
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // locks have to end, and by default its clock stands still
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("miniredis: %w", err)
	}
	return &Server{
		URL:   "redis://" + m.Addr(),
		About: "miniredis, an imitation inside this process: there is no redis-server on the PATH. Figures want a real one.",
		stop:  m.Close,
	}, nil
}

func foundRedis(ctx context.Context, url string) (*Server, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("REDIS_URL is no URL of a Redis: want redis://user:password@host:port/db")
	}
	if err := pingRedis(ctx, opts); err != nil {
		return nil, fmt.Errorf("the Redis of REDIS_URL, at %s: %w", opts.Addr, err)
	}
	return &Server{URL: url, About: "REDIS_URL, " + opts.Addr, Found: true}, nil
}

func ownRedis(ctx context.Context, program string) (*Server, error) {
	dir, err := os.MkdirTemp("", "deferlock-redis-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	d, err := launch(exec.Command(program, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no"), nil, os.Kill) // it has nothing to save
	if err == nil {
		err = d.ready(ctx, func(ctx context.Context) error { return pingRedis(ctx, &redis.Options{Addr: addr}) })
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &Server{URL: "redis://" + addr, About: program + ", started on port " + strconv.Itoa(port), stop: func() {
		d.stop()
		_ = os.RemoveAll(dir)
	}}, nil
}

func pingRedis(ctx context.Context, opts *redis.Options) error {
	once := *opts
	once.MaxRetries, once.ContextTimeoutEnabled = -1, true
	rdb := redis.NewClient(&once)
	defer rdb.Close()
	return rdb.Ping(ctx).Err()
}

// RemoveKeys removes all keys that have name in them, which must be of this run
// alone.
func RemoveKeys(ctx context.Context, rdb *redis.Client, name string) error {
	keys := rdb.Scan(ctx, 0, "*"+name+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := rdb.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
