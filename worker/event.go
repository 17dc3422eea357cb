package worker

import (
	"context"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
)

// EventType says what happened.
type EventType string

// What can happen to a write. A deferred write is admitted once, then started
// and ended until it is done or dead; a direct one is admitted, started, ended.
// What becomes of a write that failed is told when Redis has carried it out: the
// next start, in another goroutine or process, may be told before that.
const (
	EventAdmitted EventType = "admitted" // Do may run it now
	EventDeferred EventType = "deferred" // it was put into the queue: by Do, by Push, or because it failed in Do
	EventStarted  EventType = "started"  // its function is called
	EventEnded    EventType = "ended"    // its function returned; Err tells how
	EventRetried  EventType = "retried"  // it failed, and will be tried again after Rest
	EventReturned EventType = "returned" // it could not be run here and was not counted; Err says why
	EventBuried   EventType = "buried"   // it became a dead letter
	EventHalted   EventType = "halted"   // it was given up, and its lane is paused
	EventLost     EventType = "lost"     // its lock was lost while it ran
	EventTorn     EventType = "torn"     // it was in the queue without its payload, and cannot run
)

// Event is one thing that happened to one write. What does not apply is zero.
type Event struct {
	Type     EventType
	Kind     string
	Resource string
	ID       string

	Direct     bool // in Do, not in Run
	Unattended bool // it was deferred although no process runs the queue

	Attempt int           // which start of the write
	Batch   int           // how many writes the function got at once
	Why     deferral.Why  // why it was deferred
	Ahead   int           // how many writes were before it
	Waited  time.Duration // from the push to the start
	Took    time.Duration // the admission's round trip, or the function's time
	Rest    time.Duration // until it is tried again
	Err     error
}

// observe hands e to the user. What the user's function does wrong is logged
// and stays without effect.
func (w *Worker) observe(ctx context.Context, e Event) {
	if w.cfg.Observe == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			w.log.ErrorContext(ctx, "Config.Observe panicked", "panic", r)
		}
	}()
	w.cfg.Observe(e)
}

func eventOf(t EventType, d *deferral.Delivery) Event {
	return Event{Type: t, Kind: d.Kind, Resource: d.Resource, ID: d.ID, Attempt: d.Attempt, Waited: d.Waited}
}
