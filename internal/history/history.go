package history

import (
	"fmt"
	"time"
)

// Outcome is what a submitter was told.
type Outcome int

// The outcomes. A submitter that died, or that was told that the outcome is not
// known, leaves an Unknown one: the write may take effect or not.
const (
	Unknown  Outcome = iota
	Accepted         // taken care of: it ran, or it is in the queue
	Refused          // nothing happened
)

// Ref names one write.
type Ref struct{ Resource, ID string }

// String is for messages.
func (r Ref) String() string { return fmt.Sprintf("%q on %q", r.ID, r.Resource) }

// Submission is one call that submitted a write. A write may be submitted more
// than once.
type Submission struct {
	Ref
	Payload  string // or a digest of it
	Called   time.Time
	Returned time.Time // of an Accepted one
	Outcome  Outcome

	// Unordered says that the write may take effect out of its turn: it was
	// submitted with a delay, or stepped aside.
	Unordered bool
}

// Call is one call of a function, for one write or for a batch of one resource.
type Call struct {
	Resource string
	IDs      []string
	Fence    int64
	Holder   string // who held the lock; two holders never have the same fence

	// Until is when the function returned, or when its caller heard or could
	// have heard that the lock was lost, whichever was first. A call that was
	// late from its start on ends when it begins, and is not judged.
	From, Until time.Time
}

// Effect is one write that a database has.
type Effect struct {
	Ref
	Payload string
	Fence   int64
}

// History is what was recorded of one run. Effects are in the order in which
// the database took them, at least those of one resource; the others are in any
// order.
type History struct {
	Submissions []Submission
	Calls       []Call
	Effects     []Effect
	Waiting     []Ref // still in the queue at the end
	Dead        []Ref // dead letters, and what an operator took out

	// ClockLost says that Redis lost its clock while its time was set back, so
	// that fences started anew. Only a database's own order is judged then.
	ClockLost bool
}

// Kind is a way to break a promise.
type Kind string

// The kinds of violation.
const (
	Lost      Kind = "lost"      // accepted, and neither applied, waiting nor dead
	Duplicate Kind = "duplicate" // applied twice
	Foreign   Kind = "foreign"   // applied and never submitted, or with another payload
	Ghost     Kind = "ghost"     // applied although every submitter was told that nothing had happened
	Overlap   Kind = "overlap"   // called while another holder was at it
	Overtaken Kind = "overtaken" // applied after one that was submitted when it had been accepted
	Stale     Kind = "stale"     // applied with a smaller fence than one before
	Fence     Kind = "fence"     // called with a fence not greater than that of the holder before
)

// Violation is one promise broken, and by which write.
type Violation struct {
	Kind Kind
	Ref
	Detail string
}

// String is a line for a test's log.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Kind, v.Ref, v.Detail) }
