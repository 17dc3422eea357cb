package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/lock"
)

// Info is what a function can know of the write it is doing.
type Info struct {
	Name     string // the worker's
	Kind     string
	ID       string // the idempotency key
	Resource string // "" for a write that stands alone

	// Fence is greater than that of every earlier holder of the resource. A
	// database that remembers the greatest it has seen can refuse a late one.
	Fence int64

	// Attempt counts the starts of this write, this one included.
	Attempt int

	// LockTTL is how long the write's lock outlives its holder; see
	// [Config.LockTTL].
	LockTTL time.Duration

	// DeferredFor is how long ago the write was deferred; 0 on the direct path.
	DeferredFor time.Duration

	// Meta is what Config.Carry picked.
	Meta map[string]string

	// Batch has the writes of a function given to WrapBatch, in the order of
	// its values; the Info itself is then the first one's. It is nil for a
	// function given to Wrap.
	Batch []Info

	// Coalesced says that the write stands for all of Batch; see [LastWins].
	Coalesced bool

	payload []byte
	lease   *lock.Lease
	once    *once
}

// PayloadHash is the SHA-256 of the kind and the encoded value: what must be
// the same when an ID comes again.
func (in Info) PayloadHash() [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(in.Kind), in.Kind)
	h.Write(in.payload)
	return [sha256.Size]byte(h.Sum(nil))
}

type infoKey struct{}

// FromContext returns the write that a function is doing.
func FromContext(ctx context.Context) (Info, bool) {
	in, ok := ctx.Value(infoKey{}).(*Info)
	if !ok {
		return Info{}, false
	}
	return *in, true
}

// NewContext returns a context like the one a function runs in, so that the
// function can be tested without Redis.
func NewContext(ctx context.Context, in Info) context.Context {
	return withInfo(ctx, &in)
}

// withInfo is NewContext for an Info that nobody changes any more.
func withInfo(ctx context.Context, in *Info) context.Context {
	if in.once == nil {
		in.once = new(once)
	}
	return context.WithValue(ctx, infoKey{}, in)
}

// once is what one call of a function may do a single time.
type once struct{ state atomic.Int32 }

const (
	onceFree int32 = iota
	onceOpen
	onceTook
)

// BeginOnce is for packages that record, under the write's ID, that it took
// effect. One call of a function may do so a single time: a second effect under
// the same ID would be skipped when the write is delivered again. ok is false
// outside of a function, while another effect is under way, and after one that
// took. Who got true calls end, with whether the effect took; if it did not,
// there may be another.
func BeginOnce(ctx context.Context) (end func(took bool), ok bool) {
	in, found := FromContext(ctx)
	if !found || !in.once.state.CompareAndSwap(onceFree, onceOpen) {
		return nil, false
	}
	return func(took bool) {
		state := onceFree
		if took {
			state = onceTook
		}
		in.once.state.Store(state)
	}, true
}

// ErrNoLease is returned by [LiftFence] when the context has no lock behind it.
var ErrNoLease = errors.New("worker: no lock is behind this context")

// LiftFence gives the write that a function is doing a fence greater than
// above, and returns it. A database whose number is greater than the fence of a
// write that does hold its lock has outlived Redis's memory; its number sets
// Redis's clock right. It fails with [lock.ErrLost] when the lock is not the
// write's any more, or the Redis that says so may have been cut off and replaced
// ([lock.Lease.Lift]): then the write is late, and must not take effect.
func LiftFence(ctx context.Context, above int64) (int64, error) {
	in, ok := FromContext(ctx)
	if !ok || in.lease == nil {
		return 0, ErrNoLease
	}
	if err := in.lease.Lift(ctx, above); err != nil {
		return 0, err
	}
	return in.lease.Fence(), nil
}

// infoOf describes a delivery to the function that runs it.
func (w *Worker) infoOf(t *deferral.Turn, d *deferral.Delivery) Info {
	return Info{
		Name: w.cfg.Name, Kind: d.Kind, ID: d.ID, Resource: d.Resource, Fence: t.Lease().Fence(),
		Attempt: d.Attempt, LockTTL: cmp.Or(w.cfg.LockTTL, lock.DefaultTTL), DeferredFor: d.Waited, Meta: d.Meta, payload: d.Payload, lease: t.Lease(),
	}
}

// functionContext is what the function of one batch runs in: ctx, with what was
// carried and what the writes are. It ends with the lease too.
func (w *Worker) functionContext(ctx context.Context, k *kind, ins []Info) context.Context {
	if w.cfg.Restore != nil {
		ctx = w.cfg.Restore(ctx, agreed(ins))
	}
	if !k.batch {
		return withInfo(ctx, &ins[0])
	}
	in := ins[0]
	in.Batch = ins
	return withInfo(ctx, &in)
}

// agreed is what the writes of a batch all carry.
func agreed(ins []Info) map[string]string {
	meta := map[string]string{}
	for k, v := range ins[0].Meta {
		meta[k] = v
	}
	for _, in := range ins[1:] {
		for k, v := range meta {
			if other, ok := in.Meta[k]; !ok || other != v {
				delete(meta, k)
			}
		}
	}
	return meta
}

// LastWins makes of a function that writes one value one for WrapBatch that
// writes only the newest of a batch: for writes that each replace the whole of
// what was there before. The write's Info is the newest one's, and stands for
// all of its Batch.
func LastWins[T any](write func(context.Context, T) error) func(context.Context, []T) error {
	return func(ctx context.Context, vs []T) error {
		if len(vs) == 0 {
			return nil
		}
		if in, ok := FromContext(ctx); ok && len(in.Batch) == len(vs) {
			batch := in.Batch
			in = batch[len(batch)-1]
			in.Batch, in.Coalesced = batch, true
			ctx = NewContext(ctx, in)
		}
		return write(ctx, vs[len(vs)-1])
	}
}
