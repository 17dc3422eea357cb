package redistest

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// MiniInBubble starts a miniredis inside a testing/synctest bubble, where the
// clock only moves when everybody waits: keys expire, TIME goes on and clients
// time out without any time passing. t must be the T of the bubble. Clients and
// proxies of the server reach it through memory, because a goroutine blocked on
// a socket keeps a bubble from moving its clock.
//
// Clients have a PoolSize of 4; a simulation that has to replay identically
// asks for 1 with ClientWith.
func MiniInBubble(t testing.TB) *Server {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	if err := wake(m); err != nil {
		t.Fatalf("redistest: miniredis: %v", err)
	}
	return &Server{addr: "127.0.0.1:6379", mini: m, pipe: true}
}

// wake starts a miniredis without a port, which it would else do only with its
// first connection.
func wake(m *miniredis.Miniredis) error {
	conn, err := m.Dial()
	if err != nil {
		return err
	}
	return conn.Close()
}

// fitBubble sets the options without which a client does not work in a bubble.
func fitBubble(opts *redis.Options, dial func() (net.Conn, error)) {
	opts.PoolSize = 4
	opts.Dialer = func(context.Context, string, string) (net.Conn, error) { return dial() }
	// Left to itself it may look the address up, on real sockets.
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// dialPipe connects to a miniredis that has no port.
func dialPipe(m *miniredis.Miniredis) (net.Conn, error) {
	conn, err := m.Dial()
	if err != nil {
		return nil, err
	}
	return pipeConn{conn}, nil
}

// refused is what dialling a dead server gives.
func refused(addr string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: &net.AddrError{Err: syscall.ECONNREFUSED.Error(), Addr: addr}}
}

// pipeConn is an in-memory connection that fails as a socket does when its other
// end is gone. go-redis sends a command again after a socket's error, and not
// after a pipe's.
type pipeConn struct{ net.Conn }

// Write fails with a net.Error once either end is closed.
func (c pipeConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	return n, err
}

// The deadlines of a socket can be set whatever its other end does: what comes
// after them fails.

// SetDeadline never fails.
func (c pipeConn) SetDeadline(t time.Time) error {
	_ = c.Conn.SetDeadline(t)
	return nil
}

// SetReadDeadline never fails.
func (c pipeConn) SetReadDeadline(t time.Time) error {
	_ = c.Conn.SetReadDeadline(t)
	return nil
}

// SetWriteDeadline never fails.
func (c pipeConn) SetWriteDeadline(t time.Time) error {
	_ = c.Conn.SetWriteDeadline(t)
	return nil
}
