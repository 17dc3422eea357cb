package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/script"
)

// scripter stands between redislock and Redis for one lease. redislock keeps
// its part: which value the key holds, what counts as held. But where it would
// run its obtain or release script, scripter runs what belongs to the same
// atomic step instead and hands redislock the answer.
//
// It tells redislock's scripts apart by their number of arguments, which is
// why redislock is pinned: obtain has three, refresh two, release one. (TTL
// also has one, and is never asked for.)
type scripter struct {
	redis.Scripter // nil: a method that redislock v0.10.0 does not use

	rdb    redis.UniversalClient
	bid    Bid
	decide func(context.Context) (fence int64, won bool, err error)
	leave  func(context.Context) error

	// What the obtain brought, read once it has returned.
	fence   int64
	heldFor time.Duration
}

const (
	obtainArgs  = 3
	refreshArgs = 2
	releaseArgs = 1
)

// noEnd is what PTTL says of a key that never expires.
const noEnd = -1

// errArguments says that redislock sent something this package does not know.
var errArguments = errors.New("lock: redislock sent a script with an unknown number of arguments")

// once is a command that go-redis must not replay: a renewal that was lost is
// followed by the next one, and must not outlive its own deadline in replays.
type once struct{ *redis.Cmd }

// NoRetry tells go-redis to send the command a single time.
func (once) NoRetry() bool { return true }

// EvalSha runs the script of sha, or what stands in its place.
func (s *scripter) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return s.run(ctx, "evalsha", sha, keys, args)
}

// Eval runs script; redislock asks for it when EvalSha said NOSCRIPT.
func (s *scripter) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return s.run(ctx, "eval", text, keys, args)
}

func (s *scripter) run(ctx context.Context, name, text string, keys []string, args []any) *redis.Cmd {
	switch {
	case len(args) == obtainArgs && s.decide != nil:
		fence, won, err := s.decide(ctx)
		s.fence = fence
		return answer(ctx, won, err)
	case len(args) == obtainArgs:
		return s.obtain(ctx, command(ctx, name, text, keys, args))
	case len(args) == releaseArgs && s.leave != nil:
		return answer(ctx, true, s.leave(ctx))
	case len(args) == refreshArgs:
		cmd := command(ctx, name, text, keys, args)
		_ = s.rdb.Process(ctx, once{cmd})
		return cmd
	case len(args) == releaseArgs:
		// A release that is replayed finds nothing, which is as good.
		cmd := command(ctx, name, text, keys, args)
		_ = s.rdb.Process(ctx, cmd)
		return cmd
	}
	return answer(ctx, false, errArguments)
}

// obtain sends redislock's own script and asks for the fence in the same
// flight.
func (s *scripter) obtain(ctx context.Context, cmd *redis.Cmd) *redis.Cmd {
	keys := []string{s.bid.Key, s.bid.Clock}
	pipe := s.rdb.Pipeline()
	_ = pipe.Process(ctx, cmd)
	stamped := pipe.EvalSha(ctx, stampScript.Hash(), keys, s.bid.Token, 0)
	if _, err := pipe.Exec(ctx); err != nil && cmd.Err() == nil && cmd.Val() == nil {
		return answer(ctx, false, err) // a hook's: it is not set on the commands
	}
	if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return cmd
	}
	reply, err := stamped.Result()
	if err != nil {
		var r script.Reply
		if r, err = script.Run(ctx, s.rdb, stampScript, keys, s.bid.Token, 0); err != nil {
			return answer(ctx, false, fmt.Errorf("its fence: %w", err))
		}
		reply = r.Value
	}
	mine, n := stampReply(reply)
	switch {
	case mine:
		s.fence = n
	case n == noEnd:
		s.heldFor = -1
	case n > 0:
		s.heldFor = time.Duration(n) * time.Millisecond
	}
	return answer(ctx, mine, nil)
}

func command(ctx context.Context, name, text string, keys []string, args []any) *redis.Cmd {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, text, len(keys))
	for _, k := range keys {
		line = append(line, k)
	}
	return redis.NewCmd(ctx, append(line, args...)...)
}

// answer is what redislock takes for yes, no, or a failure. It only reads it.
func answer(ctx context.Context, yes bool, err error) *redis.Cmd {
	switch {
	case err != nil:
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(err)
		return cmd
	case yes:
		return answerYes
	}
	return answerNo
}

var answerYes, answerNo = redis.NewCmdResult("OK", nil), redis.NewCmdResult(nil, redis.Nil)
