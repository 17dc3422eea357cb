package redistest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Server is a miniredis or a redis-server of one test. Its methods may be
// called from several goroutines, Kill and Restart by one at a time.
type Server struct {
	addr string
	mini *miniredis.Miniredis // nil if the server is a redis-server
	real *process             // nil if the server is a miniredis
	pipe bool                 // in a synctest bubble: no sockets, see MiniInBubble

	mu   sync.Mutex // guards what follows
	down bool       // killed and not restarted
	own  int64      // commands executed for the harness itself since the start
}

// Each runs f twice, as subtests "miniredis" and "redis-server", each on a
// server of its own that is empty.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { f(t, Mini(t)) })
	t.Run("redis-server", func(t *testing.T) { f(t, Real(t)) })
}

// Mini starts a miniredis on a loopback port. Keys expire by the wall clock, as
// in a Redis; Mini().FastForward and Mini().SetTime move its time. Each command
// takes time in proportion to the number of keys, because miniredis looks at
// all of them for what has expired: a backlog of thousands is for Real, or for
// Mini().ClockTTL(false).
func Mini(t testing.TB) *Server {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatalf("redistest: miniredis: %v", err)
	}
	t.Cleanup(m.Close)
	m.ClockTTL(true)
	return &Server{addr: m.Addr(), mini: m}
}

// Real starts a redis-server on a loopback port, without persistence and in a
// directory of its own. args follow the harness's own on its command line and
// override them: "--appendonly", "yes", "--maxmemory", "1mb",
// "--enable-debug-command", "local". The server dies with the test, however
// that ends. A test fails if there is no redis-server on this machine.
func Real(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{real: newProcess(t, args)}
	err := s.real.startOnFreePort()
	s.addr = s.real.addr()
	t.Cleanup(s.real.kill)
	if err == nil {
		err = s.discount()
	}
	if err != nil {
		t.Fatalf("redistest: redis-server: %v", err)
	}
	return s
}

// Addr returns the server's host:port. In a synctest bubble nobody listens
// there.
func (s *Server) Addr() string { return s.addr }

// IsReal tells a redis-server from a miniredis.
func (s *Server) IsReal() bool { return s.real != nil }

// Mini returns the miniredis behind s, or nil if s is a redis-server.
func (s *Server) Mini() *miniredis.Miniredis { return s.mini }

// Dir returns the working directory of a redis-server, where its files are, or
// "" for a miniredis.
func (s *Server) Dir() string {
	if s.real == nil {
		return ""
	}
	return s.real.dir
}

// Client returns a client of s with go-redis's defaults, apart from honouring
// the deadlines of contexts, saying nothing about itself and giving up early
// when it dials in vain. It is closed when the test ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	return s.ClientWith(t, func(*redis.Options) {})
}

// ClientWith is Client with options that change has had the last word on.
func (s *Server) ClientWith(t testing.TB, change func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := s.options()
	change(opts)
	return newClient(t, opts)
}

// Kill ends the server at once, as kill -9 does, and returns when it is gone.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	if s.real != nil {
		s.real.kill()
		return
	}
	s.mini.Close()
}

// Restart starts a killed server again, on the same port and directory, and
// returns when it answers. A redis-server has what its persistence settings
// kept, which is nothing by default; a miniredis has all its keys.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.restart(); err != nil {
		t.Fatalf("redistest: restart: %v", err)
	}
	s.mu.Lock()
	s.down = false
	s.mu.Unlock()
}

func (s *Server) restart() error {
	switch {
	case s.real != nil:
		if err := s.real.start(); err != nil {
			return err
		}
		return s.discount()
	case s.pipe:
		s.charge(0)
		return wake(s.mini)
	}
	s.charge(0)
	return s.mini.Restart()
}

// Commands returns how many commands the server has executed since its start,
// those called by scripts included and the harness's own left out. What a
// client sends when it opens a connection counts.
func (s *Server) Commands(t testing.TB) int64 {
	t.Helper()
	own, down := s.charged()
	if down {
		t.Fatal("redistest: a server that is down counts nothing")
	}
	if s.mini != nil {
		return int64(s.mini.CommandCount()) - own
	}
	total, err := s.executed()
	if err != nil {
		t.Fatalf("redistest: INFO: %v", err)
	}
	return total - own
}

// FlushScripts makes the server forget every script.
func (s *Server) FlushScripts(t testing.TB) {
	t.Helper()
	reply, err := s.ask("SCRIPT", "FLUSH")
	if err != nil || reply != "+OK\r\n" {
		t.Fatalf("redistest: SCRIPT FLUSH: %q, %v", reply, err)
	}
}

// dial opens a connection as a client of the server.
func (s *Server) dial() (net.Conn, error) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if !s.pipe {
		return net.DialTimeout("tcp", s.addr, time.Second)
	}
	if down {
		return nil, refused(s.addr)
	}
	return dialPipe(s.mini)
}

func (s *Server) options() *redis.Options {
	opts := &redis.Options{
		Addr:                  s.addr,
		ContextTimeoutEnabled: true,
		DisableIdentity:       true,
		DialTimeout:           time.Second,
		DialerRetries:         1,
		DialerRetryTimeout:    10 * time.Millisecond,
	}
	if s.pipe {
		fitBubble(opts, s.dial)
	}
	return opts
}

// ask has the server execute one command for the harness and returns the raw
// reply.
func (s *Server) ask(args ...string) (string, error) {
	conn, err := s.dial()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	reply, err := ask(conn, encode(args...))
	s.mu.Lock()
	s.own++
	s.mu.Unlock()
	return reply, err
}

// executed returns a redis-server's own count, which does not yet include the
// INFO that asks for it.
func (s *Server) executed() (int64, error) {
	info, err := s.ask("INFO", "stats")
	if err != nil {
		return 0, err
	}
	return infoNumber(info, "total_commands_processed")
}

// discount charges everything executed so far to the harness.
func (s *Server) discount() error {
	total, err := s.executed()
	s.charge(total + 1) // the INFO just sent
	return err
}

func (s *Server) charge(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = n
}

func (s *Server) charged() (own int64, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own, s.down
}

func newClient(t testing.TB, opts *redis.Options) *redis.Client {
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it already
	return rdb
}

// infoNumber returns the number that INFO's reply gives for field.
func infoNumber(info, field string) (int64, error) {
	_, rest, found := strings.Cut(info, field+":")
	if !found {
		return 0, fmt.Errorf("INFO has no %s: %q", field, info)
	}
	digits, _, _ := strings.Cut(rest, "\r\n")
	return strconv.ParseInt(digits, 10, 64)
}
