// Package servers finds the Redis and the Postgres that an example runs on, or
// starts its own and removes them again.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// Server is a server that an example may use.
type Server struct {
	// URL is where it listens. It may hold a password.
	URL string

	// About tells a person which server it is. It holds no password.
	About string

	// Found says that the server was there before: whoever puts something into
	// it has to take it out again.
	Found bool

	stop func()
}

// Stop ends a server that was started here, and removes what it has on disk. A
// server that was found is left alone.
func (s *Server) Stop() {
	if s.stop != nil {
		s.stop()
	}
}

// patience is how long a server may take to come up, and to end.
const patience = 20 * time.Second

// daemon is a server process that ends with this one.
type daemon struct {
	cmd  *exec.Cmd
	end  os.Signal // makes it end at once, and leave nothing behind
	said *Tail
	gone chan struct{} // closed when it has ended and been waited for
}

// launch starts cmd, as somebody else if as is not nil. On Linux it ends with
// this process, even if that is killed and cannot clean up.
func launch(cmd *exec.Cmd, as *account, end os.Signal) (*daemon, error) {
	d := &daemon{cmd: cmd, end: end, said: &Tail{}, gone: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = d.said, d.said
	cmd.SysProcAttr = attributes(as)
	started := make(chan error, 1)
	go func() {
		// Linux ends the child with the thread that started it, not with the
		// process: the thread has to stay for as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(d.gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was stopped, or what it said tells why it ended
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

// ready waits until answers says that the daemon works. Otherwise it is ended,
// and the error has the last words of both.
func (d *daemon) ready(ctx context.Context, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := answers(ctx)
		if err == nil && !d.ended() {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-d.gone:
		case <-tick.C:
			continue
		}
		d.stop()
		return fmt.Errorf("%s did not come up: %w\n%s", d.cmd.Path, errors.Join(ctx.Err(), err), d.said)
	}
}

func (d *daemon) ended() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}

// stop ends the process, with force when that takes too long, and returns when
// it is gone.
func (d *daemon) stop() {
	if err := d.cmd.Process.Signal(d.end); err != nil {
		_ = d.cmd.Process.Kill() // where there are no signals; an error: it has ended
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-d.gone:
	case <-t.C:
		_ = d.cmd.Process.Kill()
		<-d.gone
	}
}

// Tail keeps the end of what is written to it: the last words of a process.
type Tail struct {
	// mu guards text.
	mu   sync.Mutex
	text []byte
}

const tailLength = 2000

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailLength; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String returns what was kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

// freePort is a port of this machine that nobody listens on, below those that
// are given to outgoing connections.
func freePort() (int, error) {
	var err error
	for range 50 {
		port := 20_000 + rand.IntN(10_000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no port is free: %w", err)
}
