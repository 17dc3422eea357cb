package worker_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A link is one connection of a process to Redis. What is read from either end
// waits for the driver, which delivers it after a time, and may lose, delay or
// cut it.
type link struct {
	world          *world
	process        *process
	client, server net.Conn
	out            chan []byte // to the client
	done           chan struct{}

	// Guarded by world.mu:
	up, down []byte // arrived since the driver last looked
	opened   bool   // past the handshake, which takes no time
	closed   bool

	// The driver's:
	subscribed bool
	vague      bool         // it has asked for what differs from run to run
	apart      bool         // it has asked for something in a key space apart
	dropping   bool         // the reply is lost, and then the connection
	last       [2]time.Time // when the last flight of each direction is delivered
}

const (
	up = iota
	down
)

// simConn fails as a socket does when its other end is gone.
type simConn struct{ net.Conn }

func (c simConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	return n, err
}

func (c simConn) SetDeadline(t time.Time) error      { _ = c.Conn.SetDeadline(t); return nil }
func (c simConn) SetReadDeadline(t time.Time) error  { _ = c.Conn.SetReadDeadline(t); return nil }
func (c simConn) SetWriteDeadline(t time.Time) error { _ = c.Conn.SetWriteDeadline(t); return nil }

// dial opens a connection of p. One of a dead process is dead.
func (w *world) dial(p *process) (net.Conn, error) {
	client, here := net.Pipe()
	server, err := w.server.Mini().Dial()
	if err != nil {
		return nil, err
	}
	l := &link{world: w, process: p, client: here, server: server, out: make(chan []byte, 1024), done: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead {
		l.closed = true
		_, _ = here.Close(), server.Close()
		return simConn{client}, nil
	}
	p.links = append(p.links, l)
	w.links.Go(l.readUp)
	w.links.Go(l.readDown)
	w.links.Go(l.write)
	return simConn{client}, nil
}

// cutLocked ends the connection. world.mu is held.
func (l *link) cutLocked() {
	if l.closed {
		return
	}
	l.closed = true
	close(l.done)
	_ = l.client.Close()
	_ = l.server.Close()
	l.process.links = slices.DeleteFunc(l.process.links, func(o *link) bool { return o == l })
}

func (l *link) cut() {
	l.world.mu.Lock()
	defer l.world.mu.Unlock()
	l.cutLocked()
}

func (l *link) write() {
	for {
		select {
		case b := <-l.out:
			if _, err := l.client.Write(b); err != nil {
				return
			}
		case <-l.done:
			return
		}
	}
}

func (l *link) readUp() {
	l.read(l.client, l.server, func(b []byte) bool {
		l.opened = l.opened || !isHandshake(b)
		if l.opened {
			l.up = append(l.up, b...)
		}
		return l.opened
	})
}

func (l *link) readDown() {
	l.read(l.server, l.client, func(b []byte) bool {
		if l.opened {
			l.down = append(l.down, b...)
		}
		return l.opened
	})
}

// read hands what comes from one end to keep, and passes on at once what keep
// does not want.
func (l *link) read(from, to net.Conn, keep func([]byte) bool) {
	defer l.cut()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		w := l.world
		w.mu.Lock()
		kept := keep(buffer[:n])
		if kept {
			w.arrived[l] = true
		}
		w.mu.Unlock()
		if kept {
			select {
			case w.poke <- struct{}{}:
			default:
			}
		} else if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func isHandshake(request []byte) bool {
	words := bytes.SplitN(bytes.ToUpper(request), []byte("\r\n"), 4)
	if len(words) < 3 {
		return false
	}
	switch string(words[2]) {
	case "HELLO", "CLIENT", "AUTH", "SELECT":
		return true
	}
	return false
}

// flight is what went one way on one link at one instant.
type flight struct {
	link      *link
	direction int
	content   []byte
	name      string // without what differs from run to run
	apart     bool   // it is about a key space in which Run tries its scripts
}

// Tokens are random, alone or behind the numbers that are kept of a write's
// starts, and so are the names of the key spaces in which Run tries its scripts.
var random = regexp.MustCompile(`\$22\r\n[\w-]{22}\r\n|\b\d+ \d+ \d+ [\w-]{22}\b|` + simName + `:check-[a-z0-9]{9}`)

// vague is a request whose reply tells of connections, or lists keys by their
// names.
var vague = regexp.MustCompile(`(?i)\r\n(info|scan)\r\n`)

// collect sends on their way the flights that have arrived. Everybody else is
// blocked.
func (w *world) collect() {
	var flights []flight
	w.mu.Lock()
	for l := range w.arrived {
		// The order in which a client lists its channels is a map's.
		l.subscribed = l.subscribed || bytes.HasPrefix(l.up, []byte("*")) && bytes.Contains(l.up, []byte("\r\nsubscribe\r\n"))
		w.records.givenLocked(l.down)
		for direction, content := range [][]byte{l.up, l.down} {
			if len(content) > 0 {
				flights = append(flights, flight{l, direction, content, l.nameOf(direction, content), l.isApart(direction, content)})
			}
		}
		l.up, l.down = nil, nil
	}
	clear(w.arrived)
	w.mu.Unlock()
	slices.SortFunc(flights, func(a, b flight) int { return strings.Compare(a.name, b.name) })
	for _, f := range flights {
		w.send(f)
	}
}

// nameOf is by what flights of one instant are told apart, and traced.
func (l *link) nameOf(direction int, content []byte) string {
	arrow := [2]string{"->", "<-"}[direction]
	if l.subscribed {
		return fmt.Sprintf("%s %s subscription, %d bytes", l.process.name, arrow, len(content))
	}
	if direction == up {
		l.vague = l.vague || vague.Match(content)
	} else if l.vague {
		l.vague = false
		return l.process.name + " <- a vague reply"
	}
	plain := random.ReplaceAll(content, []byte("RANDOM "))
	h := fnv.New64a()
	h.Write(plain)
	beginning := bytes.ReplaceAll(plain[:min(len(plain), 200)], []byte("\r\n"), []byte(" "))
	return fmt.Sprintf("%s %s %d bytes %x %q", l.process.name, arrow, len(plain), h.Sum64(), beginning)
}

// scratch is in what Run sends to try its scripts.
var scratch = []byte(simName + ":check-")

// isApart tells flights about a key space in which Run tries its scripts. It
// releases locks there in no time, and which is the first, the release or a
// renewal that a late reply has made due, is chance.
func (l *link) isApart(direction int, content []byte) bool {
	if direction == up {
		l.apart = bytes.Contains(content, scratch)
		return l.apart
	}
	was := l.apart
	l.apart = false
	return was
}

// luck is what is drawn for one flight.
type luck struct {
	fate        float64
	delay, more time.Duration
}

// drawFor draws for a flight. Two that cannot be told apart, such as a renewal
// asked for by a timer and by a function at the same instant, have the same
// luck: nobody could say which of them is the first.
func (w *world) drawFor(f flight) luck {
	if now := time.Now(); !now.Equal(w.drawnAt) {
		w.drawnAt = now
		clear(w.drawnFor)
	}
	d, twin := w.drawnFor[f.name]
	if !twin {
		rng := w.rng
		if f.apart {
			// Nothing else may depend on whether it was sent.
			w.drawnApart[f.name]++
			rng = w.drawn(f.name, w.drawnApart[f.name])
		}
		d = luck{rng.Float64(), time.Duration(50_000 + rng.IntN(450_000)), time.Duration(rng.Int64N(int64(4 * time.Second)))}
		w.drawnFor[f.name] = d
	}
	return d
}

// send has a flight delivered, or not.
func (w *world) send(f flight) {
	l, p := f.link, f.link.process
	w.mu.Lock()
	dead, closed, paused := p.dead, l.closed, time.Until(p.pausedUntil)
	w.mu.Unlock()
	if dead || closed {
		return // and nothing is drawn: whether its last bytes were still read is chance
	}
	d := w.drawFor(f)
	delay := d.delay
	if !f.apart {
		w.say("%s", f.name)
	}
	drop, lose := false, false
	if w.troubled {
		switch n := w.plan.network; {
		case d.fate < n.refuse:
			lose = true
		case d.fate < n.refuse+n.drop:
			drop = true
		case d.fate < n.refuse+n.drop+n.slow:
			delay += d.more
		}
	}
	if drop || lose || delay > time.Millisecond || paused > 0 {
		w.hurt(p)
	}
	delay += max(paused, 0)
	at := time.Now().Add(delay)
	if earliest := l.last[f.direction].Add(1); at.Before(earliest) {
		at = earliest
	}
	l.last[f.direction] = at
	w.at(at, func() { w.deliver(f, drop, lose) })
}

// deliver ends a flight. A process that died meanwhile hears nothing any more,
// but what it had sent arrives.
func (w *world) deliver(f flight, drop, lose bool) {
	l := f.link
	w.mu.Lock()
	closed := l.closed
	w.mu.Unlock()
	switch {
	case f.direction == up && lose:
		w.lost(f, "request")
		l.cut()
	case f.direction == up && closed:
		w.late(f)
	case f.direction == up:
		l.dropping = l.dropping || drop && !l.subscribed
		w.tick()
		if _, err := l.server.Write(f.content); err != nil {
			l.cut()
		}
	case closed:
	case l.dropping || lose || drop && l.subscribed:
		w.lost(f, "reply")
		l.cut()
	default:
		l.out <- f.content
	}
}

func (w *world) lost(f flight, what string) {
	if !f.apart {
		w.say("%s lost a %s", f.link.process.name, what)
	}
}

// late delivers a request whose sender has given up.
func (w *world) late(f flight) {
	content := f.content
	if bytes.Contains(content, []byte("\r\nsubscribe\r\n")) || bytes.Contains(content, []byte("\r\nping\r\n")) {
		return
	}
	conn, err := w.server.Mini().Dial()
	if err != nil {
		return
	}
	defer conn.Close()
	if !f.apart {
		w.saw("late copy")
		w.say("a late copy arrives")
	}
	w.tick()
	if _, err := conn.Write(content); err != nil {
		return
	}
	_, _ = conn.Read(make([]byte, 64<<10)) // it has run when it has answered
}

// hurt notes that a process met a fault, so that what it does may take long.
func (w *world) hurt(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.faults++
}
