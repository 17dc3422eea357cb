package pgtest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Line is the way to the server that the connections of a pool take. It counts
// what goes there, and can be cut where it hurts.
type Line struct {
	// Delay is how much longer an answer takes, as if the server were that far
	// away. It is set before the line is used.
	Delay time.Duration

	mu      sync.Mutex // guards what follows
	flights int
	marker  []byte // nil: nothing is to be lost
}

// Lead makes the connections of cfg take this line. They are not encrypted.
func (l *Line) Lead(cfg *pgxpool.Config) {
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.TLSConfig = nil
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wire{Conn: conn, line: l}, nil
	}
}

// LoseReply loses the reply to the next message with the marker: the server gets
// the message and carries it out, and when it has answered the connection is
// cut.
func (l *Line) LoseReply(marker string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marker = []byte(marker)
}

// RoundTrips returns how often something was sent and its answer waited for:
// what is sent together counts once.
func (l *Line) RoundTrips() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flights
}

// wire is one connection. What l.mu guards in it is named there.
type wire struct {
	net.Conn
	line *Line

	asked bool // sent, and no answer yet; guarded by line.mu
	lose  bool // the answer is to be lost; guarded by line.mu
}

// waiting says that what was sent has not been answered yet.
func (w *wire) waiting() bool {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	return w.asked
}

var errCut = errors.New("pgtest: the line was cut")

// Write sends b.
func (w *wire) Write(b []byte) (int, error) {
	l := w.line
	l.mu.Lock()
	if !w.asked {
		w.asked = true
		l.flights++
	}
	if l.marker != nil && bytes.Contains(b, l.marker) {
		l.marker, w.lose = nil, true
	}
	l.mu.Unlock()
	return w.Conn.Write(b)
}

// Read returns what the server sent, unless that is to be lost.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && w.line.Delay > 0 && w.waiting() {
		late := time.NewTimer(w.line.Delay)
		<-late.C
	}
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	if n > 0 {
		w.asked = false
	}
	if w.lose && n > 0 {
		_ = w.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: errCut}
	}
	return n, err
}
