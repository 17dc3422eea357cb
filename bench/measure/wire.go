package measure

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Wire counts what the connections of a client do. It sits below go-redis, so
// it sees what really goes over the wire, whatever pipelines or groups commands.
type Wire struct {
	flights atomic.Int64
	sent    atomic.Int64
}

// RoundTrips returns how often a connection sent something after it had last
// received something: a pipeline counts once, however many commands it has.
func (w *Wire) RoundTrips() int64 { return w.flights.Load() }

// Sent returns how many commands the client was asked to send, each of a
// pipeline counted, and what a script calls not.
func (w *Wire) Sent() int64 { return w.sent.Load() }

// Client returns a client with opts whose connections are counted.
func (w *Wire) Client(opts redis.Options) *redis.Client {
	dial := redis.NewDialer(&opts)
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		t, ok := c.(*net.TCPConn)
		if !ok {
			_ = c.Close()
			return nil, fmt.Errorf("measure: a connection to %s is a %T, and only TCP can be counted", addr, c)
		}
		return &conn{TCPConn: t, wire: w}, nil
	}
	return redis.NewClient(&opts)
}

// CountSent makes Sent work for rdb. It costs each command a little, so rounds
// that are timed do without.
func (w *Wire) CountSent(rdb *redis.Client) { rdb.AddHook(sentHook{w}) }

// conn is one connection. go-redis never writes to and reads from one at the
// same time, but for subscriptions, where it does not matter who is first. It
// is a TCP connection in full: with less, go-redis would leave out the look at
// a connection's health that it takes at each use.
type conn struct {
	*net.TCPConn
	wire    *Wire
	waiting atomic.Bool // something was sent and nothing received since
}

func (c *conn) Write(b []byte) (int, error) {
	if !c.waiting.Swap(true) {
		c.wire.flights.Add(1)
	}
	return c.TCPConn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.waiting.Store(false)
	return n, err
}

type sentHook struct{ wire *Wire }

func (h sentHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h sentHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.wire.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (h sentHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.wire.sent.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
