package pgfence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/deferlock/deferlock/lock"
	"github.com/deferlock/deferlock/worker"
)

// fencing is what is checked in a fenced transaction, and what is run in it.
type fencing struct {
	name, resource string
	fence          int64
	ids            []string
	hashes         [][]byte

	lockTimeout, idleTimeout int64 // ms

	// run does the write; fresh tells of each ID whether it is.
	run func(tx pgx.Tx, fresh []bool) error
}

func newFencing(in worker.Info, ins []worker.Info, run func(pgx.Tx, []bool) error) (*fencing, error) {
	ttl := cmp.Or(in.LockTTL, lock.DefaultTTL).Milliseconds()
	f := &fencing{
		name: in.Name, resource: in.Resource, fence: in.Fence,
		ids: make([]string, len(ins)), hashes: make([][]byte, len(ins)),
		// 0 would be no limit. A stopped holder's lock has at least two thirds of
		// its life before it.
		lockTimeout: max(ttl/4, 1), idleTimeout: max(ttl/2, 1),
		run: run,
	}
	for i, in := range ins {
		if in.ID == "" {
			return nil, errors.New("pgfence: Info.ID is empty")
		}
		hash := in.PayloadHash()
		f.ids[i], f.hashes[i] = in.ID, hash[:]
	}
	return f, nil
}

// maxTries bounds how often a transaction is begun for one write. The worker
// comes back later to what is in the way for longer.
const maxTries = 5

// do runs transactions until one has committed, or found nothing to do, or
// failed for a reason that trying again at once does not mend.
func (f *fencing) do(ctx context.Context, db DB) error {
	_, joined := db.(pgx.Tx)
	for n := 1; ; n++ {
		err := f.attempt(ctx, db)
		var late *behind
		switch {
		case err == nil:
			return nil
		case errors.As(err, &late):
			if err := f.lift(ctx, late.seen, n); err != nil {
				return err
			}
			continue
		case joined || n == maxTries || !conflict(err):
			return verdict(err)
		}
		if !rest(ctx, n) {
			return verdict(err)
		}
	}
}

// behind says that the database has seen a greater fence.
type behind struct{ seen int64 }

// Error describes a stale holder; it is never returned to the user.
func (e *behind) Error() string { return fmt.Sprintf("the database has seen fence %d", e.seen) }

// lift gives the write a fence above what the database has seen, if Redis says
// that the lock is the write's own.
func (f *fencing) lift(ctx context.Context, seen int64, n int) error {
	stale := fmt.Errorf("%w: fence %d, the database has seen %d", ErrStale, f.fence, seen)
	if n == maxTries {
		return worker.Busy(stale)
	}
	fence, err := worker.LiftFence(ctx, seen)
	switch {
	case err == nil:
		f.fence = fence
		return nil
	case errors.Is(err, lock.ErrLost), errors.Is(err, worker.ErrNoLease):
		return worker.Busy(stale)
	}
	return worker.Busy(fmt.Errorf("%w, and whether the lock is lost is not known: %w", stale, err))
}

// rest waits before the next try, longer each time and never as long as another
// that failed with it. It reports false when ctx has ended.
func rest(ctx context.Context, n int) bool {
	most := 4 * time.Millisecond << n
	t := time.NewTimer(most/2 + rand.N(most/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
