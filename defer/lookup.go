package deferral

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// ErrAmbiguous is returned when an ID alone does not say which write is meant,
// because several resources have one of that ID: ask with [Queue.LookupIn] or
// [Queue.CancelIn].
var ErrAmbiguous = errors.New("deferral: several resources have a write with this ID")

// Place says where in the queue a write is.
type Place string

// The places. A write that was admitted and runs directly is in none of them.
const (
	Waiting Place = "waiting" // in its lane
	Running Place = "running" // in its lane, and started by who holds the lane's lock
	Later   Place = "later"   // put aside until its time has come
	Dead    Place = "dead"    // a dead letter
)

// Item is a write in the queue, as an operator sees it. Moments are given by
// the queue's clock, which is that of Redis but never goes back; a moment that
// does not apply is zero.
type Item struct {
	// Write has neither Delay nor At: see Due.
	Write

	Place Place

	// Ahead is how many writes are before it in its lane.
	Ahead int

	// Attempts is how often it was started, and Cause why it failed last.
	Attempts int
	Cause    string

	// Pushed is when it first joined its lane, and Age how long ago that was.
	// Both are zero for a write for later that has not been there yet.
	Pushed time.Time
	Age    time.Duration

	// Due is the moment before which it does not start: that of a write for
	// later, or the end of a rest after a failure.
	Due time.Time

	// Buried is when it became a dead letter.
	Buried time.Time

	// Paused says that its lane is paused, and Reason why.
	Paused bool
	Reason string

	// Err is not nil when what is stored cannot be read by this release, or is
	// gone; only ID and Resource are set of the Write then.
	Err error
}

// Lookup says where the write with this ID is. It knows a write without a
// resource at once; for any other it looks at the name of every key in the
// database with SCAN, which takes time in proportion to all keys there but does
// not hold Redis up. [Queue.LookupIn] is the cheap way. The error is
// [ErrNotFound] when the write is nowhere: it has been acknowledged, or was
// never deferred. A write that joins or leaves the queue meanwhile may be
// missed.
func (q *Queue) Lookup(ctx context.Context, id string) (Item, error) {
	it, err := q.LookupIn(ctx, "", id)
	if !errors.Is(err, ErrNotFound) {
		return it, err
	}
	return q.search(ctx, id)
}

// LookupIn is [Queue.Lookup] for a write whose resource is known, "" for a
// write without one. It takes one round trip.
func (q *Queue) LookupIn(ctx context.Context, resource, id string) (Item, error) {
	h, err := q.locate(ctx, resource, id)
	if err != nil {
		return Item{}, fmt.Errorf("deferral: look up %q: %w", id, err)
	}
	lane := keyspace.LaneOf(resource, id)
	r, err := script.Run(ctx, q.rdb, lookupScript, writeKeys(h, resource, id), lane, h.Prefix, id)
	if err != nil {
		return Item{}, fmt.Errorf("deferral: look up %q: %w", id, err)
	}
	v, _ := r.Value.([]any)
	if len(v) == 0 {
		return Item{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	return newItem(resource, id, v), nil
}

// Cancel takes the write with this ID out of the queue: it will not run. The
// write is found as by [Queue.Lookup], at the same cost. A write that has been
// started is left alone with [ErrRunning], a dead letter with [ErrDead]: use
// [Queue.Forget]. After [ErrUnclear] it may have been taken out.
func (q *Queue) Cancel(ctx context.Context, id string) error {
	err := q.CancelIn(ctx, "", id)
	if !errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnclear) {
		return err
	}
	it, err := q.search(ctx, id)
	if err != nil {
		return err
	}
	return q.CancelIn(ctx, it.Resource, id)
}

// CancelIn is [Queue.Cancel] for a write whose resource is known, "" for a
// write without one. It takes one round trip.
func (q *Queue) CancelIn(ctx context.Context, resource, id string) error {
	code, repeated, err := q.operate(ctx, cancelScript, resource, id)
	switch {
	case err != nil:
		return fmt.Errorf("deferral: cancel %q: %w", id, err)
	case code == -1:
		return fmt.Errorf("%w: %q", ErrRunning, id)
	case code == -2:
		return fmt.Errorf("%w: %q", ErrDead, id)
	case code == 0:
		return missing(id, repeated)
	}
	return nil
}

// search finds the only write with this ID that has a resource.
func (q *Queue) search(ctx context.Context, id string) (Item, error) {
	var found []Item
	seen := map[string]bool{}
	for key, err := range q.keys(ctx, "write:*"+escape(keyspace.Ref("", id))) {
		if err != nil {
			return Item{}, fmt.Errorf("deferral: look for %q: %w", id, err)
		}
		resource, _ := keyspace.Split(strings.TrimPrefix(key.rest, "write:"))
		if resource == "" || seen[resource] || q.space.Of(resource) != key.shard {
			continue
		}
		seen[resource] = true
		it, err := q.LookupIn(ctx, resource, id)
		switch {
		case err == nil:
			found = append(found, it)
		case !errors.Is(err, ErrNotFound): // its payload may have been left behind
			return Item{}, err
		}
	}
	switch len(found) {
	case 0:
		return Item{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	case 1:
		return found[0], nil
	}
	return Item{}, fmt.Errorf("%w: %q; LookupIn and CancelIn take the resource too", ErrAmbiguous, id)
}

// operate runs one of the scripts that take a write's ID and reply with a code.
func (q *Queue) operate(ctx context.Context, s *script.Script, resource, id string) (code int64, repeated bool, err error) {
	h, err := q.locate(ctx, resource, id)
	if err != nil {
		return 0, false, err
	}
	r, err := script.Run(ctx, q.rdb, s, writeKeys(h, resource, id), keyspace.LaneOf(resource, id), h.Prefix, id)
	if err != nil {
		return 0, false, err
	}
	code, _ = r.Value.(int64)
	return code, r.Repeated, nil
}

// missing is the error for a write that is not there. If the call was repeated
// because no reply had come, it may be what took the write away.
func missing(id string, repeated bool) error {
	if repeated {
		return fmt.Errorf("%w: %w: %q", ErrUnclear, ErrNotFound, id)
	}
	return fmt.Errorf("%w: %q", ErrNotFound, id)
}

// locate returns the shard that keeps a write.
func (q *Queue) locate(ctx context.Context, resource, id string) (*keyspace.Shard, error) {
	if err := keyspace.CheckID(id); err != nil {
		return nil, fmt.Errorf("%w: ID %w", ErrInvalid, err)
	}
	if resource != "" {
		if err := keyspace.CheckResource(resource); err != nil {
			return nil, fmt.Errorf("%w: resource %w", ErrInvalid, err)
		}
	}
	if err := q.agree(ctx); err != nil {
		return nil, err
	}
	return q.space.Of(keyspace.LaneOf(resource, id)), nil
}

// newItem reads the reply of lookup.lua.
func newItem(resource, id string, v []any) Item {
	it := Item{Write: Write{ID: id, Resource: resource}}
	score, now, notes := intAt(v, 1), intAt(v, 2), stringAt(v, 4)
	switch stringAt(v, 0) {
	case "dead":
		it.bury(score, now, notes)
	case "later":
		it.Place, it.Due = Later, time.UnixMicro(score)
		t := readTries(notes, 0)
		it.Attempts, it.Cause = t.starts, t.cause
		it.push(t.first, now)
	default:
		it.Place, it.Ahead = Waiting, int(intAt(v, 5))
		t := readTries(notes, score)
		it.Attempts, it.Cause = t.starts, t.cause
		it.push(t.first, now)
		if t.starts > 0 && t.token == stringAt(v, 6) {
			it.Place = Running
		}
		if t.rest > now {
			it.Due = time.UnixMicro(t.rest)
		}
		it.Reason, it.Paused = v[7].(string)
	}
	it.open(v[3])
	return it
}

// push notes the first stamp, 0 if there was none.
func (it *Item) push(first, now int64) {
	if first > 0 {
		it.Pushed, it.Age = time.UnixMicro(first), micros(now-first)
	}
}

// bury reads what leave.lua keeps of a dead letter: starts, first stamp, cause.
func (it *Item) bury(at, now int64, grave string) {
	starts, rest, _ := strings.Cut(grave, " ")
	first, cause, _ := strings.Cut(rest, " ")
	it.Place, it.Buried, it.Cause = Dead, time.UnixMicro(at), cause
	it.Attempts = int(number(starts))
	it.push(number(first), now)
}

// open reads the envelope, nil if there is none.
func (it *Item) open(envelope any) {
	if text, ok := envelope.(string); ok {
		it.Err = openEnvelope([]byte(text), &it.Write)
		return
	}
	it.Err = fmt.Errorf("%w: it is gone", ErrEnvelope)
}

// tries is what Redis keeps of a write that was started; see lane.lua.
type tries struct {
	starts      int
	rest, first int64
	token       string
	cause       string
}

// readTries reads what lane.lua's write_tries wrote, "" if it wrote nothing.
func readTries(text string, first int64) tries {
	f := strings.SplitN(text, " ", 5)
	if len(f) < 4 {
		return tries{first: first, token: "-"}
	}
	t := tries{starts: int(number(f[0])), rest: number(f[1]), first: number(f[2]), token: f[3]}
	if len(f) == 5 {
		t.cause = f[4]
	}
	return t
}

// number reads a number that a script wrote; what is none reads as zero.
func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
