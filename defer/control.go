package deferral

import (
	"context"
	"fmt"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// A lane is named by its resource, or for a write that stands alone by
// [Lane.Name], which is also what [Due.Endless] has.

// Pause lets nothing start in the lane of resource until [Queue.Resume]: writes
// to it are deferred, and those that wait stay. What is running runs on. The
// reason, at most 512 bytes of it, is shown with the lane; pausing a paused lane
// changes only the reason. resource may also be a [Lane.Name].
func (q *Queue) Pause(ctx context.Context, resource, reason string) error {
	if _, err := q.control(ctx, pauseScript, resource, "pause", cut(reason, maxCause)); err != nil {
		return fmt.Errorf("deferral: pause %q: %w", resource, err)
	}
	return nil
}

// Resume ends a pause, also one that a write that failed for good began: that
// write is at the head of the lane and is started again, unless it is cancelled
// first, and its attempts are counted anew. Resuming a lane that is not paused
// does no harm. resource may also be a [Lane.Name].
func (q *Queue) Resume(ctx context.Context, resource string) error {
	if _, err := q.control(ctx, pauseScript, resource, "resume", ""); err != nil {
		return fmt.Errorf("deferral: resume %q: %w", resource, err)
	}
	return nil
}

// Free takes the lock of resource away from whoever holds it, and says whether
// there was one, or may have been one if the first reply was lost. It is for a
// lock without an end ([Due.Endless]), or for a holder that is known to be dead
// and whose TTL is too long to wait for. A holder that is alive hears of it only
// at its next renewal, and may write until then and later, at the same time as
// the next one. The next holder's fence is higher, so a database that checks
// fences refuses the old one; without that the two may overwrite each other.
// resource may also be a [Lane.Name].
func (q *Queue) Free(ctx context.Context, resource string) (bool, error) {
	r, err := q.control(ctx, freeScript, resource)
	if err != nil {
		return false, fmt.Errorf("deferral: free %q: %w", resource, err)
	}
	code, _ := r.Value.(int64)
	return code == 1 || r.Repeated, nil
}

// control runs a script about one lane.
func (q *Queue) control(ctx context.Context, s *script.Script, lane string, args ...any) (script.Reply, error) {
	if err := checkLane(lane); err != nil {
		return script.Reply{}, err
	}
	if err := q.agree(ctx); err != nil {
		return script.Reply{}, err
	}
	h := q.space.Of(lane)
	return script.Run(ctx, q.rdb, s, laneKeys(h, lane), append([]any{lane, h.Prefix}, args...)...)
}

// checkLane refuses what is neither a resource nor the name of a lane.
func checkLane(lane string) error {
	err := keyspace.CheckResource(lane)
	if _, id := keyspace.Split(lane); lane != "" && keyspace.ResourceOf(lane) == "" {
		err = keyspace.CheckID(id)
	}
	if err != nil {
		return fmt.Errorf("%w: resource %w", ErrInvalid, err)
	}
	return nil
}
