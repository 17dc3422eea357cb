package redistest

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Proxy stands between clients and a server. It counts what passes, keeps
// copies of it, and injects the faults a test asks for.
//
// A fault hits requests whose bytes contain a marker: a key, a script's hash, a
// token, a command's name as the client spells it. What a client sends to set
// its connection up (HELLO, AUTH, SELECT, CLIENT SETINFO) is neither counted
// nor ever hit. Connections that have subscribed are passed on as they are from
// then on: their requests can be refused, held and recorded, but replies on
// them are neither dropped nor held.
type Proxy struct {
	server   *Server
	addr     string
	listener net.Listener // nil in a synctest bubble
	done     chan struct{}
	running  sync.WaitGroup

	mu         sync.Mutex // guards what follows
	links      map[*link]struct{}
	faults     []*fault
	recorded   []string // markers
	captured   [][]byte
	roundTrips int64
	requests   int64
}

// NewProxy starts a proxy before s. It ends, with every connection through it,
// when the test ends. Inside a synctest bubble it works through memory.
func NewProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	p := &Proxy{server: s, addr: s.addr, done: make(chan struct{}), links: map[*link]struct{}{}}
	if !s.pipe {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("redistest: proxy: %v", err)
		}
		p.listener, p.addr = l, l.Addr().String()
		p.running.Go(p.accept)
	}
	t.Cleanup(p.close)
	return p
}

// Addr returns the host:port where the proxy listens, outside of a bubble.
func (p *Proxy) Addr() string { return p.addr }

// Client is Server.Client through the proxy.
func (p *Proxy) Client(t testing.TB) *redis.Client {
	t.Helper()
	return p.ClientWith(t, func(*redis.Options) {})
}

// ClientWith is Server.ClientWith through the proxy.
func (p *Proxy) ClientWith(t testing.TB, change func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := p.server.options()
	opts.Addr = p.addr
	if p.server.pipe {
		fitBubble(opts, p.connect)
	}
	change(opts)
	return newClient(t, opts)
}

// DropReply loses the replies to the next n requests that contain marker: the
// server gets the request, and its reply, with whatever follows it in the same
// pipeline, is thrown away and the connection cut.
func (p *Proxy) DropReply(marker string, n int) {
	p.add(&fault{kind: dropReply, marker: marker, left: n})
}

// RefuseRequest loses the next n requests that contain marker: the connection
// is cut, and the server gets nothing of the pipeline the request is in.
func (p *Proxy) RefuseRequest(marker string, n int) {
	p.add(&fault{kind: refuseRequest, marker: marker, left: n})
}

// HoldReply keeps back the reply to the next request that contains marker, and
// what follows on its connection, until release is called. release may be
// called more than once.
func (p *Proxy) HoldReply(marker string) (release func()) {
	f := p.add(newHold(holdReply, marker))
	return f.release
}

// HoldRequest keeps back the next request that contains marker, with the
// pipeline it is in, until release is called; arrived is closed when it is
// there. It then reaches the server even if its client has given up: a late
// copy. release may be called more than once.
func (p *Proxy) HoldRequest(marker string) (arrived <-chan struct{}, release func()) {
	f := p.add(newHold(holdRequest, marker))
	return f.arrived, f.release
}

// Heal ends all faults: pending ones are forgotten, and what is held is
// released.
func (p *Proxy) Heal() {
	p.mu.Lock()
	faults := p.faults
	p.faults = nil
	p.mu.Unlock()
	for _, f := range faults {
		if f.release != nil {
			f.release()
		}
	}
}

// Cut closes every connection clients now have. Requests that are held stay
// held.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		_ = l.client.Close()
	}
}

// Record keeps a copy of every request from now on that contains marker.
func (p *Proxy) Record(marker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recorded = append(p.recorded, marker)
}

// Captured returns the recorded requests in the order in which they arrived,
// one command each, as they were on the wire.
func (p *Proxy) Captured() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.captured)
}

// Replay sends a captured request to the server again, on a fresh connection
// past the proxy, as a network does that delivers a copy late. It returns the
// reply's RESP2 bytes without the last line break: ":1", "$-1", "-ERR no".
func (p *Proxy) Replay(t testing.TB, raw []byte) (reply string) {
	t.Helper()
	conn, err := p.server.dial()
	if err != nil {
		t.Fatalf("redistest: replay: %v", err)
	}
	defer conn.Close()
	reply, err = ask(conn, raw)
	if err != nil {
		t.Fatalf("redistest: replay: %v", err)
	}
	return strings.TrimSuffix(reply, "\r\n")
}

// RoundTrips returns how often clients sent something and had to wait for the
// answer: a pipeline counts once, however many commands it has.
func (p *Proxy) RoundTrips() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrips
}

// Requests returns how many commands clients sent: each command of a pipeline
// counts, what a script calls does not.
func (p *Proxy) Requests() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// Reset sets the counters to zero and forgets what was captured. Faults and
// what is to be recorded stay as they are.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.roundTrips, p.requests, p.captured = 0, 0, nil
}

func (p *Proxy) close() {
	close(p.done)
	if p.listener != nil {
		_ = p.listener.Close()
	}
	p.mu.Lock()
	for l := range p.links {
		l.cut()
	}
	p.mu.Unlock()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.serve(client)
	}
}

// connect opens a connection to the proxy inside a bubble.
func (p *Proxy) connect() (net.Conn, error) {
	client, here := net.Pipe()
	if !p.serve(here) {
		return nil, refused(p.addr)
	}
	return pipeConn{client}, nil
}

// serve passes a client's connection on to the server. It reports false, and
// has closed the connection, if the server or the proxy is gone.
func (p *Proxy) serve(client net.Conn) bool {
	server, err := p.server.dial()
	if err != nil {
		_ = client.Close()
		return false
	}
	l := &link{proxy: p, client: client, server: server}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		l.cut()
		return false
	default:
	}
	p.links[l] = struct{}{}
	p.running.Go(func() {
		l.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
	return true
}

func (p *Proxy) add(f *fault) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// admit counts and records the requests of one flight and returns the faults
// that hit each of them. fresh says that the client was not waiting for an
// earlier answer on this connection.
func (p *Proxy) admit(flight [][]byte, fresh bool) [][]*fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	hits := make([][]*fault, len(flight))
	counted := int64(0)
	for i, request := range flight {
		if isHandshake(request) {
			continue
		}
		counted++
		if slices.ContainsFunc(p.recorded, func(marker string) bool { return contains(request, marker) }) {
			p.captured = append(p.captured, request)
		}
		hits[i] = p.hitLocked(request)
	}
	p.requests += counted
	if counted > 0 && fresh {
		p.roundTrips++
	}
	return hits
}

// hitLocked uses up one turn of the oldest fault of each kind that the request
// meets. p.mu is held.
func (p *Proxy) hitLocked(request []byte) []*fault {
	var hits []*fault
	var met [kinds]bool
	for _, f := range p.faults {
		if f.left > 0 && !met[f.kind] && contains(request, f.marker) {
			met[f.kind] = true
			f.left--
			hits = append(hits, f)
		}
	}
	return hits
}

func contains(request []byte, marker string) bool { return bytes.Contains(request, []byte(marker)) }

// bufferSize is large enough for the flights of tests: a pipeline that comes in
// several reads counts as several flights if the server answers in between.
const bufferSize = 256 << 10

func newReader(conn net.Conn) *bufio.Reader { return bufio.NewReaderSize(conn, bufferSize) }
