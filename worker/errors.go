package worker

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotAccepted is wrapped by the error of a Do or Push that did nothing:
	// the write neither ran nor is it in the queue.
	ErrNotAccepted = errors.New("worker: not accepted")

	// ErrUnknown is wrapped by the error of a Do or Push whose outcome is not
	// known: the write may be in the queue. Call again with the same
	// idempotency key, which is safe; a write that runs at once is never in
	// doubt.
	ErrUnknown = errors.New("worker: outcome unknown")

	// ErrStopping is the cause with which a function's context ends when Run
	// was asked to stop and the grace is over. The write is not lost, and the
	// attempt is not counted.
	ErrStopping = errors.New("worker: stopping")

	// ErrRunning is returned by Run while another Run of the same worker is
	// under way.
	ErrRunning = errors.New("worker: Run is under way already")

	// ErrAbandoned is returned by Run when writes ignored the end of their
	// context and are still running. Their locks are kept until they return, or
	// MaxHold has passed, or the process ends and the locks expire.
	ErrAbandoned = errors.New("worker: writes ignored the end of their context")
)

// Permanent says that trying again is useless: the write is given up at once.
// It returns nil for nil.
func Permanent(err error) error { return mark(err, marks{permanent: true}) }

// IsPermanent reports whether err was marked with [Permanent].
func IsPermanent(err error) bool {
	var m *marked
	return errors.As(err, &m) && m.permanent
}

// RetryAfter says when to try again, in the place of Config.Backoff. It returns
// nil for nil.
func RetryAfter(err error, d time.Duration) error {
	return mark(err, marks{after: max(d, 0), hasAfter: true})
}

// Busy says that the write could not be tried, because something that it needs
// was taken: a row lock, a connection. It keeps its place and is tried again,
// and the attempt is not counted. The backoff is that of a first attempt, then
// of a second, and so on to the sixth, as long as nothing else of the lane
// takes effect in this process. It returns nil for nil.
func Busy(err error) error { return mark(err, marks{busy: true}) }

// Applied is what a function given to WrapBatch returns when the first n values
// took effect and then err stopped it. The first n are done, the others are
// tried again one by one. With a nil err it returns nil: all took effect.
func Applied(n int, err error) error { return mark(err, marks{applied: max(n, 0)}) }

type marks struct {
	permanent, busy, hasAfter bool
	after                     time.Duration
	applied                   int
}

// marked is an error with a word to the worker. It reads like the error.
type marked struct {
	error
	marks
}

// Unwrap returns the error that was marked.
func (m *marked) Unwrap() error { return m.error }

// mark keeps what an earlier mark on err says.
func mark(err error, m marks) error {
	if err == nil {
		return nil
	}
	old := marksOf(err)
	m.permanent = m.permanent || old.permanent
	m.busy = m.busy || old.busy
	if !m.hasAfter {
		m.after, m.hasAfter = old.after, old.hasAfter
	}
	m.applied = max(m.applied, old.applied)
	return &marked{err, m}
}

func marksOf(err error) marks {
	var m *marked
	if errors.As(err, &m) {
		return m.marks
	}
	return marks{}
}

// PanicError is the failure of a function that panicked. The stack is in the
// log, not in the error's text.
type PanicError struct {
	Value any
	Stack []byte
}

// Error says what the panic was.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// errExited is the failure of a function that ended its goroutine.
var errExited = errors.New("worker: the function called runtime.Goexit")
