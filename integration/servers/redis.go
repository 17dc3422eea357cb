package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const redisProgram = "redis-server"

// Redis is one redis-server of a test. Its methods are for one goroutine at a
// time; clients are not.
type Redis struct {
	*daemon
	addr, host, password string
	port                 int
}

// NewRedis starts a redis-server that a test may do anything to. It keeps an
// append-only file, in which every write is before it is answered, so that kill
// and Start lose nothing: the kernel keeps what the disk has not got. (With
// "everysec" a write may be held back for as long as the disk is busy.) args
// follow the harness's own on the command line and override them.
func NewRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	return newRedis(t, 0, args...)
}

// newRedis starts one whose port plus other must be free too.
func newRedis(t testing.TB, other int, args ...string) *Redis {
	t.Helper()
	return newRedisOn(t, local, other, args...)
}

// local is the address of servers that have none of their own.
const local = "127.0.0.1"

// newRedisOn starts one that has an address of this machine.
func newRedisOn(t testing.TB, host string, other int, args ...string) *Redis {
	t.Helper()
	port, err := freePort(other)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	r := redisOn(t, host, port, args...)
	if err := r.start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return r
}

// NewTLSRedis starts a redis-server that speaks TLS only, and returns its
// address. The files are its certificates: ca.crt, redis.crt and redis.key.
func NewTLSRedis(t testing.TB, files map[string][]byte) string {
	t.Helper()
	port, err := freePort(0)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	r := redisAt(t, port)
	r.spec.args = append(r.spec.args, "--port", "0", "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no",
		"--tls-ca-cert-file", "ca.crt", "--tls-cert-file", "redis.crt", "--tls-key-file", "redis.key")
	r.up = func() error { // whether its certificate is any good is the test's affair
		conn, err := net.DialTimeout("tcp", r.addr, time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.spec.dir, name), text, 0o600); err != nil {
			t.Fatalf("servers: %v", err)
		}
	}
	if err := r.start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return r.addr
}

// redisAt prepares a server on a port. It ends with the test.
func redisAt(t testing.TB, port int, args ...string) *Redis {
	t.Helper()
	return redisOn(t, local, port, args...)
}

// redisOn prepares one that has an address of this machine.
func redisOn(t testing.TB, host string, port int, args ...string) *Redis {
	t.Helper()
	dir := directory(t, nil)
	r := &Redis{host: host, port: port, addr: net.JoinHostPort(host, strconv.Itoa(port))}
	r.daemon = &daemon{up: r.answers, spec: spec{
		program: redisProgram, image: redisImage(), dir: dir,
		args: append([]string{
			"--bind", host, "--port", strconv.Itoa(port), "--dir", dir, "--save", "",
			"--appendonly", "yes", "--appendfsync", "no",
		}, append(allowDebug(t), args...)...),
	}}
	t.Cleanup(func() { r.end(syscall.SIGKILL) })
	return r
}

// answers says whether it is this very server that answers. One that wants a
// password or a certificate answers that.
func (r *Redis) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	opts := r.Options()
	opts.MaxRetries = -1
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	err := rdb.Ping(ctx).Err()
	if redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "MASTERDOWN") {
		return nil
	}
	return err
}

// Addr is the server's host:port.
func (r *Redis) Addr() string { return r.addr }

// Options are those of a client as the library wants it, which gives up early
// when it dials in vain.
func (r *Redis) Options() *redis.Options {
	return &redis.Options{
		Addr: r.addr, Password: r.password, ContextTimeoutEnabled: true, DialTimeout: time.Second,
		DialerRetries: 1, DialerRetryTimeout: 10 * time.Millisecond,
	}
}

// Client returns a client that is closed when the test ends.
func (r *Redis) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(r.Options())
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Admin is a client to do things to the server with: it sends everything once,
// and waits for as long as it takes.
func (r *Redis) Admin(t testing.TB) *redis.Client {
	t.Helper()
	opts := r.Options()
	opts.MaxRetries, opts.ReadTimeout = -1, time.Minute
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Do has the server carry out one command, and fails the test if it does not.
func (r *Redis) Do(t testing.TB, args ...any) string {
	t.Helper()
	opts := r.Options()
	opts.MaxRetries, opts.ReadTimeout = -1, time.Minute
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	reply, err := rdb.Do(t.Context(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("servers: %v: %v", args, err)
	}
	return fmt.Sprint(reply)
}

// Kill ends the server as kill -9 does, and returns when it is gone.
func (r *Redis) Kill() { r.end(syscall.SIGKILL) }

// Start starts a server that was killed, on the same port and files, and
// returns when it answers.
func (r *Redis) Start(t testing.TB) {
	t.Helper()
	if err := r.start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
}

// StartSlowly is Start with further arguments for this once, and returns when
// the server answers anything at all, be it that it is loading.
func (r *Redis) StartSlowly(t testing.TB, args ...string) {
	t.Helper()
	usual := r.spec.args
	defer func() { r.spec.args, r.up = usual, r.answers }()
	r.spec.args = append(slices.Clip(usual), args...)
	r.up = func() error {
		if err := r.answers(); !redis.IsLoadingError(err) {
			return err
		}
		return nil
	}
	r.Start(t)
}

// Stop freezes the server: its connections stay open, and nothing is answered.
func (r *Redis) Stop(t testing.TB) { t.Helper(); r.signal(t, syscall.SIGSTOP) }

// Continue lets a stopped server go on.
func (r *Redis) Continue(t testing.TB) { t.Helper(); r.signal(t, syscall.SIGCONT) }

// CutTail takes the last n bytes off the append-only file of a server that is
// down: what a power cut does to what was not yet on the disk. It returns how
// many were left to take.
func (r *Redis) CutTail(t testing.TB, n int64) int64 {
	t.Helper()
	name, err := newest(filepath.Join(r.spec.dir, "appendonlydir", "*.incr.aof"))
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	n = min(n, info.Size())
	if err := os.Truncate(name, info.Size()-n); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return n
}

// Rewrite has the server write its append-only file anew, and returns when it
// has.
func (r *Redis) Rewrite(t testing.TB) {
	t.Helper()
	r.Do(t, "bgrewriteaof")
	Wait(t, patience, "the append-only file to be rewritten", func() bool {
		now := info(r, "persistence")
		return strings.Contains(now, "aof_rewrite_in_progress:0") && strings.Contains(now, "aof_rewrite_scheduled:0") &&
			strings.Contains(now, "aof_last_bgrewrite_status:ok")
	})
}

// Dir is the server's own directory.
func (r *Redis) Dir() string { return r.spec.dir }

// AnyRedis is a Redis that the test leaves as it is, but for its own keys: the
// one at REDIS_URL, or one of its own. It returns the URL.
func AnyRedis(t testing.TB) string {
	t.Helper()
	if url := address(t, "REDIS_URL"); url != "" {
		if _, err := redis.ParseURL(url); err != nil {
			t.Fatal("servers: REDIS_URL is no URL of a Redis: want redis://user:password@host:port/db")
		}
		return url
	}
	return NewRedis(t).URL()
}

// URL is the server's address with what is needed to use it.
func (r *Redis) URL() string { return "redis://" + r.addr }

// address is what the environment says about a server, "" if it is not to be
// used or says nothing.
func address(t testing.TB, variable string) string {
	t.Helper()
	f, err := forced()
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	url := os.Getenv(variable)
	if f == env && url == "" {
		t.Fatalf("servers: DEFERLOCK_SERVERS is env, and %s is not set", variable)
	}
	if f == "" || f == env {
		return url
	}
	return ""
}
