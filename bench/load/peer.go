package load

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/deferlock/deferlock/bench/measure"
)

// Write is one write, and what is stored of it while it waits.
type Write struct {
	Seq      int    `json:"seq"`      // numbers the writes of a round; below 0: does not count
	Index    int    `json:"index"`    // numbers the resources
	Resource string `json:"resource"` // the same as a name
	Note     string `json:"note"`     // what makes it as large as a small real one
}

// Note is as much as a write carries.
const Note = "invoice 2041 of 17 March, paid by card, thank you for your order"

// Peer is a way to have writes done one at a time for each resource.
type Peer interface {
	// Do has w done. When it returns without an error w is done, or will be by
	// Run in this or another process.
	Do(ctx context.Context, w Write) error

	// Run does what Do has left, until ctx ends. It returns when all it
	// started has ended. A peer that leaves nothing waits for ctx.
	Run(ctx context.Context) error
}

// Keeper is a peer that can put a write aside without trying it.
type Keeper interface {
	Peer
	Put(ctx context.Context, w Write) error
}

// Stepper is a peer whose Run is a loop of steps that can be taken singly. A
// step does some of what waits, and says how much.
type Stepper interface {
	Keeper
	Step(ctx context.Context) (int, error)
}

// Work is what a write does.
type Work struct {
	takes    time.Duration
	recorder atomic.Pointer[measure.Recorder]
	warm     atomic.Int64
}

// NewWork returns work that takes so long and is recorded with rec.
func NewWork(takes time.Duration, rec *measure.Recorder) *Work {
	k := &Work{takes: takes}
	k.Record(rec)
	return k
}

// Record has what is done from now on recorded with rec.
func (k *Work) Record(rec *measure.Recorder) { k.recorder.Store(rec) }

// Warm says how many writes were done that do not count.
func (k *Work) Warm() int { return int(k.warm.Load()) }

// Do does w. It is what peers call.
func (k *Work) Do(w Write) {
	if w.Seq < 0 {
		k.warm.Add(1)
		return
	}
	start := measure.Now()
	if k.takes > 0 {
		time.Sleep(k.takes)
	}
	k.recorder.Load().Ran(measure.Run{Seq: int32(w.Seq), Resource: int32(w.Index), Start: start, End: measure.Now()})
}
