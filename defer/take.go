package deferral

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deferlock/deferlock/internal/script"
)

// How much one look at the index does at the most.
const (
	reservation = time.Second // nobody else is sent to a lane that was handed out
	passOver    = 64          // locked lanes that are passed over in search of free ones
	moveLater   = 100         // writes that join their lanes because their time has come
)

// Due is the answer to [Queue.Due].
type Due struct {
	// Lanes are due and were free a moment ago, the longest due first. Nobody
	// else is given them for a second.
	Lanes []string

	// Next is when another look is worth while: zero when more may be due, and
	// negative when nothing is known to wait.
	Next time.Duration

	// Endless are lanes whose lock has no end. No holder of ours leaves one: it
	// has to be removed by hand, or with [Queue.Free].
	Endless []string

	// Torn are writes for later whose payload is gone; see [Turn.Torn].
	Torn []string
}

// Due hands out up to n lanes of a shard in which something may be started: the
// oldest write of each has waited for lookback. Writes whose later has come
// join their lanes first. Admissions are told for the time of mark, if it is
// not zero, that somebody runs this queue. What it costs does not depend on how
// many writes wait. The lanes of skip are left to others.
func (q *Queue) Due(ctx context.Context, shard, n int, lookback, mark time.Duration, skip ...string) (Due, error) {
	if shard < 0 || shard >= q.cfg.Shards {
		return Due{}, fmt.Errorf("%w: shard %d of %d", ErrInvalid, shard, q.cfg.Shards)
	}
	if err := checkLookback(lookback); err != nil {
		return Due{}, err
	}
	if err := q.ensure(ctx); err != nil {
		return Due{}, fmt.Errorf("deferral: look for due lanes: %w", err)
	}
	h := q.space.Shard(shard)
	keys := []string{h.Due, h.Later, h.Clock, h.Alive, h.Paused}
	if shard == 0 {
		keys = append(keys, q.space.ShardsKey())
	}
	args := []any{h.Prefix, min(max(n, 0), MaxBatch), lookback.Microseconds(), mark.Milliseconds(),
		reservation.Microseconds(), passOver + len(skip), moveLater, q.cfg.Shards}
	for _, lane := range skip {
		args = append(args, lane)
	}
	r, err := script.Run(ctx, q.rdb, takeScript, keys, args...)
	if err != nil {
		return Due{}, fmt.Errorf("deferral: look for due lanes: %w", err)
	}
	next, v := codeOf(r.Value)
	d := Due{Lanes: stringsAt(v, 1), Endless: stringsAt(v, 2), Torn: stringsAt(v, 3), Next: -1}
	if next >= 0 {
		d.Next = time.Duration(next) * time.Microsecond
	}
	return d, nil
}

func isUnclear(err error) bool { return errors.Is(err, ErrUnclear) }
