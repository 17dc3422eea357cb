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
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed prelude.lua
var prelude string

// attempts is how often a script is sent before its failure is reported, like
// go-redis's own default of three retries.
const attempts = 4

// ErrUnclear is wrapped by the error of a script that may have run although no
// reply arrived. An error that does not wrap it means: the script did nothing.
var ErrUnclear = errors.New("it may have been carried out")

// Script is a Lua script whose text can be sent again when a server has
// forgotten it.
type Script struct{ text, sha string }

// New makes a script of parts, put one behind the other, with the functions of
// prelude.lua before them.
func New(parts ...string) *Script {
	text := prelude + strings.Join(parts, "")
	return &Script{text: text, sha: redis.NewScript(text).Hash()}
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

// Run runs s.
func Run(ctx context.Context, c redis.UniversalClient, s *Script, keys []string, args ...any) (Reply, error) {
	return RunWait(ctx, c, s, Wait{}, keys, args...)
}

// RunWait is Run followed by Redis's WAIT on the same connection and in the
// same flight.
func RunWait(ctx context.Context, c redis.UniversalClient, s *Script, w Wait, keys []string, args ...any) (Reply, error) {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, "evalsha", s.sha, len(keys))
	for _, k := range keys {
		line = append(line, k)
	}
	line = append(line, args...)

	unclear := false
	for n := 1; ; n++ {
		if ctx.Err() != nil {
			return Reply{}, failed(context.Cause(ctx), unclear)
		}
		v, acked, err := send(ctx, c, w, line)
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			line[0], line[1] = "eval", s.text
			v, acked, err = send(ctx, c, w, line)
			line[0], line[1] = "evalsha", s.sha
		}
		if err == nil || errors.Is(err, redis.Nil) {
			return Reply{Value: v, Acked: acked, Repeated: unclear}, nil
		}
		sent, again := classify(err)
		unclear = unclear || sent
		if !again || n == attempts {
			return Reply{}, failed(err, unclear)
		}
		if cc, ok := c.(*redis.ClusterClient); ok {
			cc.ReloadState(ctx)
		}
		if pause(ctx, Backoff(n)) != nil {
			return Reply{}, failed(context.Cause(ctx), unclear)
		}
	}
}

func send(ctx context.Context, c redis.UniversalClient, w Wait, line []any) (any, int64, error) {
	cmd := once{redis.NewCmd(ctx, line...)}
	if w.Replicas == 0 {
		err := c.Process(ctx, cmd)
		return cmd.Val(), 0, err
	}
	// WAIT counts only what its own connection wrote, and has no key by which
	// a cluster client could find the right one.
	if cc, ok := c.(*redis.ClusterClient); ok {
		node, err := cc.MasterForKey(ctx, line[3].(string))
		if err != nil {
			return nil, 0, notSent{err}
		}
		c = node
	}
	pipe := c.Pipeline()
	_ = pipe.Process(ctx, cmd)
	wait := pipe.Do(ctx, "wait", w.Replicas, w.Timeout.Milliseconds())
	_, _ = pipe.Exec(ctx)
	if err := cmd.Err(); err != nil {
		return nil, 0, err
	}
	acked, err := wait.Int64()
	if err != nil {
		// The script ran, but nobody knows on how many replicas it is.
		return cmd.Val(), 0, nil
	}
	return cmd.Val(), acked, nil
}

// notSent marks an error from before the script was on its way.
type notSent struct{ error }

// classify says whether the attempt that ended in err may have been carried
// out, and whether another one makes sense.
func classify(err error) (sent, again bool) {
	var re redis.Error
	var op *net.OpError
	var ns notSent
	var cert *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &re):
		return false, transient(err)
	case errors.As(err, &ns), errors.Is(err, redis.ErrPoolTimeout):
		return false, true
	case errors.Is(err, redis.ErrClosed), errors.As(err, &cert), errors.As(err, &plain):
		return false, false
	case errors.As(err, &op) && op.Op == "dial":
		return false, true
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true, false
	default:
		return true, true
	}
}

// transient tells the server's refusals that pass by themselves from those
// that need somebody to act.
func transient(err error) bool {
	for _, p := range []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "ERR max number of clients"} {
		if redis.HasErrorPrefix(err, p) || strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
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
