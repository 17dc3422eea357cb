// Package script runs Lua scripts on Redis and tells, when one fails, whether
// it may have run all the same.
//
// go-redis replays a command whose reply was lost, and reports only how the
// last replay ended. A caller who must know whether a write was accepted
// cannot use that: "connection refused" may follow a first attempt that went
// through. So a script is sent with go-redis's own replay switched off, and
// replayed here, where every attempt's outcome is seen. Scripts run by this
// package must be safe to run twice.
package script

import (
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed prelude.lua
var prelude string

// attempts is how often a script is sent before its failure is reported, like
// go-redis's own default of three retries.
const attempts = 4

// ErrUnclear is wrapped by the error of a script that may have run although no
// reply arrived. An error that does not wrap it means that the script was never
// on its way, or that Redis refused it: it did nothing, or it was stopped by a
// wrong type or a missing right, and no further than its own order of writes
// lets that do harm.
var ErrUnclear = errors.New("it may have been carried out")

// Script is a Lua script whose text can be sent again when a server has
// forgotten it.
type Script struct {
	sha       string
	name, all []byte // what is sent: the hash, and the text
}

// New makes a script of parts, put one behind the other, with the functions of
// prelude.lua before them.
func New(parts ...string) *Script { return NewWithShortcut("", parts...) }

// NewWithShortcut is New with a part that comes before everything else, and so
// can use nothing of it: the common case of the script, answered before the
// functions are set up that the others need. That takes a third of its time.
func NewWithShortcut(shortcut string, parts ...string) *Script {
	text := shortcut + prelude + strings.Join(parts, "")
	sha := redis.NewScript(text).Hash()
	return &Script{sha: sha, name: []byte(sha), all: []byte(text)}
}

// Hash is the name under which servers remember the script.
func (s *Script) Hash() string { return s.sha }

// Wait asks that what a script wrote is acknowledged by replicas before the
// script counts as done.
type Wait struct {
	Replicas int
	Timeout  time.Duration
}

// once is a command that go-redis must not replay.
type once struct{ *redis.Cmd }

// NoRetry tells go-redis to send the command a single time.
func (once) NoRetry() bool { return true }

// watched is an argument that notices when it is written to a connection. What
// fails before that was never sent, whatever the error: a dial, a handshake, a
// full pool, a circuit breaker. The errors alone do not tell; a connection cut
// in the handshake is the same EOF as one cut before the reply.
type watched struct {
	text    []byte
	written *atomic.Bool
}

// MarshalBinary is how go-redis asks for the argument when it writes it.
func (w watched) MarshalBinary() ([]byte, error) {
	w.written.Store(true)
	return w.text, nil
}

// String is what logs and traces show of the argument.
func (w watched) String() string { return string(w.text) }

// Reply is what a script answered.
type Reply struct {
	// Value is nil when the script replied with nothing.
	Value any

	// Acked is how many replicas acknowledged, if that was asked for.
	Acked int64

	// Repeated says that an earlier attempt of the same call may have been
	// carried out too: what the script reports as done already, this very call
	// may have done.
	Repeated bool
}

// Run runs s in a flight of its own.
func Run(ctx context.Context, c redis.UniversalClient, s *Script, keys []string, args ...any) (Reply, error) {
	return (&Sender{rdb: c}).Run(ctx, s, Wait{}, keys, args...)
}

// Run runs s, followed by w if that asks for something, on the same connection and
// in the same flight.
func (p *Sender) Run(ctx context.Context, s *Script, w Wait, keys []string, args ...any) (Reply, error) {
	unclear := false
	for n := 1; ; n++ {
		if err := over(ctx); err != nil {
			return Reply{}, failed(err, unclear)
		}
		r, written, err := p.send(ctx, w, "evalsha", s.name, keys, args)
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			r, written, err = p.send(ctx, w, "eval", s.all, keys, args)
		}
		if err == nil {
			r.Repeated = unclear
			return r, nil
		}
		unclear = unclear || written && !refused(err)
		cluster, onCluster := p.rdb.(*redis.ClusterClient)
		if n == attempts || !passes(err, onCluster) {
			return Reply{}, failed(err, unclear)
		}
		if onCluster {
			cluster.ReloadState(ctx)
		}
		if pause(ctx, Backoff(n)) != nil {
			return Reply{}, failed(ended(ctx), unclear)
		}
	}
}

// send makes one attempt. written says that the script was on its way.
func (p *Sender) send(ctx context.Context, w Wait, name string, text []byte, keys []string, args []any) (_ Reply, written bool, _ error) {
	c := &call{ctx: ctx}
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, watched{text: text, written: &c.written}, len(keys))
	for _, k := range keys {
		line = append(line, k)
	}
	c.cmd = once{redis.NewCmd(ctx, append(line, args...)...)}
	if w.Replicas == 0 {
		return p.fly(c)
	}
	node, err := nodeOf(ctx, p.rdb, keys)
	if err != nil {
		return Reply{}, false, err
	}
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, c.cmd)
	// A WAIT of 0 ms would wait for ever.
	wait := pipe.Do(ctx, "wait", w.Replicas, max(w.Timeout.Milliseconds(), 1))
	_, failed := pipe.Exec(ctx)
	// Without an answer to WAIT the script has run all the same, but nobody
	// knows on how many replicas it is.
	r, written, err := c.outcome(failed)
	if err == nil {
		r.Acked, _ = wait.Int64()
	}
	return r, written, err
}

// nodeOf is where keys are. WAIT counts only what its own connection wrote, and
// has no key by which a client of several servers could find the right one.
func nodeOf(ctx context.Context, c redis.UniversalClient, keys []string) (redis.UniversalClient, error) {
	switch c := c.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, keys[0])
	case *redis.Ring:
		return c.GetShardClientForKey(keys[0])
	}
	return c, nil
}

// refused says that err is a server's answer.
func refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// passes says that what failed with err may succeed a little later, without
// anybody doing something about it.
func passes(err error, onCluster bool) bool {
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	var plain tls.RecordHeaderError
	switch {
	case redis.IsLoadingError(err), redis.IsReadOnlyError(err), redis.IsMasterDownError(err),
		redis.IsClusterDownError(err), redis.IsTryAgainError(err), redis.IsMaxClientsError(err):
		return true
	case refused(err):
		// A cluster client follows these by itself, but not behind nodeOf.
		_, moved := redis.IsMovedError(err)
		_, ask := redis.IsAskError(err)
		return onCluster && (moved || ask)
	case errors.Is(err, redis.ErrClosed):
		return onCluster // a node that has left; the client itself may be open
	case errors.As(err, &cert), errors.As(err, &alert), errors.As(err, &plain):
		return false
	}
	return true
}

// Until is context.WithDeadline without the timer: connections heed the deadline
// and no attempt begins after it, but Done is ctx's. For calls that are nearly
// always over long before.
func Until(ctx context.Context, deadline time.Time) context.Context {
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		return ctx
	}
	return until{ctx, deadline}
}

type until struct {
	context.Context
	deadline time.Time
}

// Deadline returns the earlier deadline.
func (u until) Deadline() (time.Time, bool) { return u.deadline, true }

// over says why no attempt should begin.
func over(ctx context.Context) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

// ended is why ctx has ended, with its cause if that says more.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func failed(err error, unclear bool) error {
	if unclear {
		return fmt.Errorf("%w: %w", ErrUnclear, err)
	}
	return err
}

// Backoff is how long to wait after the nth attempt that failed: 8, 32 and
// 128 ms, so that a restart in place is outlived.
func Backoff(n int) time.Duration {
	return (8 * time.Millisecond) << (2 * min(n-1, 2))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
