package fleet

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// lossy loses replies. What it stands between sends a request and waits for the
// answer; the request goes out, the server carries it out and answers, and the
// answer is thrown away and the connection cut.
type lossy struct {
	gates *gates

	plan []Loss
	say  *sayer

	mu   sync.Mutex     // guards seen
	seen map[string]int // how often each step was sent
}

// dial is a dialer whose connections lose replies.
func (l *lossy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossyConn{Conn: conn, lossy: l}, nil
}

// hit says whether the reply to a request is to be lost.
func (l *lossy) hit(request []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.plan {
		marker := l.gates.sha(p.Step)
		if p.Step == "commit" {
			marker = "commit\x00"
		}
		if marker == "" || !bytes.Contains(request, []byte(marker)) {
			continue
		}
		l.seen[p.Step]++
		if l.seen[p.Step]%p.Every == 0 {
			l.say.say(record{Event: saidNote, Text: "lost " + p.Step})
			return true
		}
	}
	return false
}

type lossyConn struct {
	net.Conn
	lossy *lossy

	mu  sync.Mutex // guards cut
	cut bool
}

// Write sends, and notes whether the reply is to be lost.
func (c *lossyConn) Write(b []byte) (int, error) {
	if c.lossy.hit(b) {
		c.mu.Lock()
		c.cut = true
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// Read reads what the server says. If it is to be lost it is: the server has
// done what it was asked for by then.
func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
