package deferral

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// maxDelay is how far ahead a write can be pushed.
const maxDelay = 10 * 365 * 24 * time.Hour

// Write is one unit of work.
type Write struct {
	// ID names the write on its resource. Pushing the same ID again while the
	// write is in the queue changes nothing; with another kind or payload it is
	// an error. Default: a new UUID. At most 256 bytes of UTF-8.
	ID string

	// Resource is what must not be written to by two at once. Writes to one
	// resource are delivered one at a time and in order. A write without one
	// stands alone. At most 1024 bytes of UTF-8, kept exactly.
	Resource string

	// Kind says which function the write is for. It may be empty.
	Kind string

	// Meta travels with the write, for a trace or a tenant. It is not part of
	// what must be the same when an ID comes again.
	Meta map[string]string

	// Payload is stored as it is.
	Payload []byte

	// Delay, or At by Redis's clock, is when the write joins its lane: now, if
	// both are zero. Only one may be set.
	Delay time.Duration
	At    time.Time
}

// check refuses what cannot be stored, and gives a write without an ID one.
func (q *Queue) check(w *Write) error {
	if w.ID == "" {
		w.ID = uuid.NewString()
	}
	if err := keyspace.CheckID(w.ID); err != nil {
		return fmt.Errorf("%w: Write.ID %w", ErrInvalid, err)
	}
	if w.Resource != "" {
		if err := keyspace.CheckResource(w.Resource); err != nil {
			return fmt.Errorf("%w: Write.Resource %w", ErrInvalid, err)
		}
	}
	switch size := len(w.Payload); {
	case size > q.cfg.MaxPayload:
		return fmt.Errorf("%w: Write.Payload has %d bytes: at most %d are allowed", ErrInvalid, size, q.cfg.MaxPayload)
	case len(w.Kind) > keyspace.MaxName:
		return fmt.Errorf("%w: Write.Kind has %d bytes: at most %d are allowed", ErrInvalid, len(w.Kind), keyspace.MaxName)
	case w.Delay < 0 || w.Delay > maxDelay:
		return fmt.Errorf("%w: Write.Delay is %v: want 0 to %v", ErrInvalid, w.Delay, maxDelay)
	case w.Delay > 0 && !w.At.IsZero():
		return fmt.Errorf("%w: Write.Delay and Write.At are both set", ErrInvalid)
	case !w.At.IsZero() && (w.At.Year() < 1970 || w.At.Year() > 2200):
		return fmt.Errorf("%w: Write.At is in the year %d", ErrInvalid, w.At.Year())
	}
	size := 0
	for k, v := range w.Meta {
		size += len(k) + len(v)
	}
	if size > maxMeta {
		return fmt.Errorf("%w: Write.Meta has %d bytes: at most %d are allowed", ErrInvalid, size, maxMeta)
	}
	return nil
}

const maxMeta = 64 << 10

// Push stores w and returns its ID. When it returns nil the write is in the
// queue, to the durability level of Config.Replicas, until it is acknowledged,
// cancelled or forgotten. After [ErrUnclear] or [ErrNotReplicated] it may be;
// any other error means that nothing was stored. The ID is returned whenever w
// was valid, so that the push can be repeated with it.
func (q *Queue) Push(ctx context.Context, w Write) (id string, err error) {
	if err := q.check(&w); err != nil {
		return "", err
	}
	if err := q.ensure(ctx); err != nil {
		return w.ID, fmt.Errorf("deferral: push %q: %w", w.ID, err)
	}
	lane := keyspace.LaneOf(w.Resource, w.ID)
	h := q.space.Of(lane)
	var at int64
	if !w.At.IsZero() {
		at = w.At.UnixMicro()
	}
	r, err := q.sender.Run(ctx, pushScript, q.wait(), writeKeys(h, w.Resource, w.ID),
		lane, h.Prefix, w.ID, sealEnvelope(&w), q.cfg.MaxDepth, w.Delay.Microseconds(), at)
	if err != nil {
		return w.ID, fmt.Errorf("deferral: push %q: %w", w.ID, err)
	}
	if code, v := codeOf(r.Value); code < 0 {
		return w.ID, refusal(code, v)
	}
	return w.ID, q.replicated(r)
}

// wait is what the durability level asks of every script that accepts a write.
func (q *Queue) wait() script.Wait {
	return script.Wait{Replicas: q.cfg.Replicas, Timeout: q.cfg.ReplicaTimeout}
}

func (q *Queue) replicated(r script.Reply) error {
	if q.cfg.Replicas > 0 && r.Acked < int64(q.cfg.Replicas) {
		return fmt.Errorf("%w: %d of %d replicas", ErrNotReplicated, r.Acked, q.cfg.Replicas)
	}
	return nil
}

// refusal is the error for a negative code of admit.lua and push.lua.
func refusal(code int64, v []any) error {
	switch code {
	case -1:
		return fmt.Errorf("%w: %d writes wait", ErrLaneFull, intAt(v, 1))
	case -2:
		return ErrMismatch
	case -3:
		return ErrDead
	}
	return fmt.Errorf("deferral: Redis replied with code %d", code)
}

// ensure makes sure, once, that all processes use the same number of shards.
func (q *Queue) ensure(ctx context.Context) error {
	if q.sameShards.Load() {
		return nil
	}
	key, mine := q.space.ShardsKey(), q.cfg.Shards
	if _, err := q.rdb.SetNX(ctx, key, mine, 0).Result(); err != nil {
		return fmt.Errorf("remember the number of shards: %w", err)
	}
	theirs, err := q.rdb.Get(ctx, key).Int()
	if err != nil {
		return fmt.Errorf("read the number of shards: %w", err)
	}
	if theirs != mine {
		return fmt.Errorf("%w: %d, Config.Shards is %d", ErrShards, theirs, mine)
	}
	q.sameShards.Store(true)
	return nil
}
