package linear_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// loss loses replies to the scripts of one client: the server gets the request
// and carries it out, and its answer is thrown away and the connection cut. A
// nil loss loses none.
type loss struct {
	left atomic.Int32 // how many more are lost
	lost atomic.Int32 // how many were, in the call that is being made
}

// begin decides what is lost in the next call: nothing, mostly; the first reply,
// so that the script is repeated and all is well; or all of them.
func (l *loss) begin(random *rand.Rand) {
	if l == nil {
		return
	}
	l.lost.Store(0)
	switch random.IntN(200) {
	case 0, 1, 2, 3, 4, 5:
		l.left.Store(1)
	case 6:
		l.left.Store(4)
	}
}

// end says how many replies the call has lost.
func (l *loss) end() int {
	if l == nil {
		return 0
	}
	l.left.Store(0)
	return int(l.lost.Load())
}

// dial is a dialer whose connections lose replies.
func (l *loss) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossyConn{Conn: conn, loss: l}, nil
}

// lossyConn has one request under way at a time, as go-redis's connections do.
type lossyConn struct {
	net.Conn
	loss *loss
	cut  atomic.Bool
}

// Write sends, and notes whether the reply is to be lost.
func (c *lossyConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\neval")) && c.loss.left.Add(-1) >= 0 {
		c.cut.Store(true)
	}
	return c.Conn.Write(b)
}

// Read waits for what the server says. What is to be lost is lost then: the
// server has done what it was asked for.
func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		if err == nil {
			c.loss.lost.Add(1)
		}
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
