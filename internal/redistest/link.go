package redistest

import (
	"bufio"
	"net"
	"slices"
	"sync"
)

type kind int

const (
	dropReply kind = iota
	refuseRequest
	holdReply
	holdRequest
	kinds // their number
)

// fault is one thing a test asked a proxy to do to requests with a marker.
type fault struct {
	kind   kind
	marker string
	left   int // how many more requests it hits; guarded by Proxy.mu

	// Of a hold only:
	arrived  chan struct{} // closed when the request is there
	released chan struct{} // closed by release
	release  func()
}

func newHold(k kind, marker string) *fault {
	f := &fault{kind: k, marker: marker, left: 1, arrived: make(chan struct{}), released: make(chan struct{})}
	f.release = sync.OnceFunc(func() { close(f.released) })
	return f
}

// link is one client's connection through a proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	mu      sync.Mutex // guards what follows
	pending [][]*fault // of each request that has no reply yet, oldest first
	pushing bool       // subscribed: replies cannot be matched any more
}

// run passes requests and replies on until either end is gone, or a fault cuts
// the link.
func (l *link) run() {
	var replies sync.WaitGroup
	replies.Go(func() {
		defer l.cut()
		l.passReplies()
	})
	l.passRequests()
	l.cut()
	replies.Wait()
}

// cut closes both connections. It may be called more than once.
func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// passRequests sends on what the client sends, one flight at a time, until the
// client is gone or a request is refused.
func (l *link) passRequests() {
	in := newReader(l.client)
	for {
		flight, err := readFlight(in)
		if err != nil {
			return
		}
		hits := l.proxy.admit(flight, l.idle())
		if slices.ContainsFunc(hits, func(fs []*fault) bool { return find(fs, refuseRequest) != nil }) {
			return
		}
		for _, fs := range hits {
			if !l.wait(find(fs, holdRequest)) {
				return
			}
		}
		l.expect(flight, hits)
		if _, err := l.server.Write(slices.Concat(flight...)); err != nil {
			return
		}
	}
}

// readFlight returns the requests that arrived together.
func readFlight(in *bufio.Reader) ([][]byte, error) {
	var flight [][]byte
	for {
		request, err := readRequest(in)
		if err != nil {
			return nil, err
		}
		flight = append(flight, request)
		if in.Buffered() == 0 {
			return flight, nil
		}
	}
}

// idle says that nobody waits for a reply on this link.
func (l *link) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) == 0
}

// expect notes what is to be done with the replies to the flight. It comes
// before the server can answer.
func (l *link) expect(flight [][]byte, hits [][]*fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(flight, turnsToPushing) {
		l.pushing, l.pending = true, nil
	}
	if !l.pushing {
		l.pending = append(l.pending, hits...)
	}
}

// passReplies sends on what the server answers until the server is gone or a
// reply is dropped.
func (l *link) passReplies() {
	in := newReader(l.server)
	dropping := false
	for {
		reply, err := readReply(in)
		if err != nil {
			return
		}
		hits, left := l.answered(reply)
		dropping = dropping || find(hits, dropReply) != nil
		if dropping && left == 0 {
			return // the server has done the whole pipeline
		}
		if dropping {
			continue
		}
		if !l.wait(find(hits, holdReply)) {
			return
		}
		if _, err := l.client.Write(reply); err != nil {
			return
		}
	}
}

// answered takes the request that reply belongs to off the pending ones. It
// returns the faults that hit it, and how many requests are still pending.
func (l *link) answered(reply []byte) (hits []*fault, left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 && !isPush(reply) {
		hits = l.pending[0]
		l.pending = l.pending[1:]
	}
	return hits, len(l.pending)
}

// wait returns true when the hold is released, at once if there is none, and
// false when the proxy ends before that.
func (l *link) wait(hold *fault) bool {
	if hold == nil {
		return true
	}
	close(hold.arrived)
	select {
	case <-hold.released:
		return true
	case <-l.proxy.done:
		return false
	}
}

// find returns the fault of kind k, or nil.
func find(faults []*fault, k kind) *fault {
	for _, f := range faults {
		if f.kind == k {
			return f
		}
	}
	return nil
}
