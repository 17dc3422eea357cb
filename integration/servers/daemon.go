package servers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// daemon is one server of a test, which can be killed and started again in the
// same place.
type daemon struct {
	spec spec
	up   func() error // nil: it works

	// mu guards now, which is nil while the server is down.
	mu  sync.Mutex
	now running
}

// patience is how long a server may take to come up: longer than it takes on a
// machine that is busy with other tests.
const patience = 30 * time.Second

// start launches the process and returns when it works.
func (d *daemon) start() error {
	r, err := launch(d.spec)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.now = r
	d.mu.Unlock()
	err = fmt.Errorf("it has ended")
	ok := poll(patience, func() bool {
		select {
		case <-r.gone():
			return true
		default:
			err = d.up()
			return err == nil
		}
	})
	if ok && err == nil {
		return nil
	}
	d.end(syscall.SIGKILL)
	return fmt.Errorf("%s %v did not come up: %w\n%s", d.spec.program, d.spec.args, err, r.said())
}

// end sends the process a signal that ends it, and returns when it is gone.
func (d *daemon) end(s syscall.Signal) {
	d.mu.Lock()
	r := d.now
	d.now = nil
	d.mu.Unlock()
	if r == nil {
		return
	}
	_ = r.signal(s) // an error: it has ended by itself
	select {
	case <-r.gone():
		return
	case <-time.After(patience):
	}
	_ = r.signal(syscall.SIGKILL)
	<-r.gone()
}

// signal does nothing to a server that is down.
func (d *daemon) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now == nil {
		return
	}
	if err := d.now.signal(s); err != nil {
		t.Errorf("servers: signal %v: %v", s, err)
	}
}

// isUp says that the server was started and not ended since.
func (d *daemon) isUp() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now != nil
}

// Wait returns as soon as cond is true, and fails the test when that takes
// longer than within. It is for what may take longer than redistest.Wait gives.
func Wait(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	if !poll(within, cond) {
		t.Fatalf("servers: waited %v in vain: %s", within, what)
	}
}

func poll(within time.Duration, cond func() bool) bool {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	end := time.NewTimer(within)
	defer end.Stop()
	for !cond() {
		select {
		case <-ticker.C:
		case <-end.C:
			return cond()
		}
	}
	return true
}

// ports remembers which ports this process has given out: two servers that are
// started at once must not both be given the one that is free now.
var ports sync.Map

// freePort is a port that nobody listens on, below those that are given to
// outgoing connections, so that it stays free while its server is down. other is
// added to it for a second port that must be free too, 0 for none.
func freePort(other int) (int, error) {
	// Packages are tested by processes of their own, at the same time: each
	// looks in a window of its own first.
	window := 12_000 + os.Getpid()%10*1000
	var err error
	for range 500 {
		port := window + rand.IntN(1000)
		if _, given := ports.LoadOrStore(port, true); given {
			continue
		}
		if err = free(port); err == nil && other != 0 {
			err = free(port + other)
		}
		if err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port is free: %w", err)
}

func free(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// account is who a server runs as.
type account struct{ uid, gid uint32 }

// unprivileged is somebody for servers that refuse to run as root; nil when the
// tests do not run as root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &account{uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("these tests run as root, which Postgres refuses, and there is no user postgres or nobody")
}

// directory makes a directory that its server's account can work in. The test's
// own, t.TempDir, is closed to others.
func directory(t testing.TB, who *account) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "deferlock-") //nolint:usetesting // the server runs as another user, and may outlive the test
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if who != nil {
		if err := os.Chown(dir, int(who.uid), int(who.gid)); err != nil {
			t.Fatalf("servers: %v", err)
		}
	}
	return dir
}

// newest returns the file last in the order of its name among those that match.
func newest(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no file %s: %w", pattern, os.ErrNotExist)
	}
	return found[len(found)-1], nil
}
