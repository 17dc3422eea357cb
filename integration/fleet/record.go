package fleet

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What a process says about itself, one line of JSON each.
const (
	saidUp      = "up"      // it works
	saidCall    = "call"    // a write is about to be submitted
	saidReturn  = "return"  // the submitter was told what became of it
	saidAgain   = "again"   // a function is called for a write that was started before
	saidStale   = "stale"   // a function was refused by the fence
	saidRefused = "refused" // it was, and was not late
	saidTold    = "told"    // a function was told that its lock is lost
	saidLost    = "lost"    // a lock was lost while its write ran
	saidEnded   = "ended"   // a function has failed
	saidBuried  = "buried"
	saidTorn    = "torn"  // a write is there no more, but for its place in the queue
	saidGate    = "gate"  // it is at its gate
	saidQuiet   = "quiet" // it submits nothing any more
	saidNote    = "note"  // something a test asked for
)

// record is one thing a process has said.
type record struct {
	Event    string `json:"e"`
	At       int64  `json:"t"` // nanoseconds, by a clock that all processes share and nobody sets
	ID       string `json:"i,omitempty"`
	Resource string `json:"r,omitempty"`
	Payload  string `json:"p,omitempty"`
	Outcome  string `json:"o,omitempty"` // accepted, refused or unknown
	Text     string `json:"x,omitempty"`
	Later    bool   `json:"l,omitempty"`
}

// now is the time of the machine since its start: the same for all processes,
// and not touched by who sets the clock.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// sayer writes records to the fleet. One record is one write to a pipe, so that
// a process that is killed leaves whole lines.
type sayer struct {
	mu  sync.Mutex // guards out
	out io.Writer
}

func (s *sayer) say(r record) {
	r.At = now()
	line, err := json.Marshal(r)
	if err != nil {
		return // there is nothing in a record that cannot be marshalled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.out.Write(append(line, '\n')) // the fleet is gone, and with it this process
}

// listen hands each record of a process on until it ends.
func listen(r io.Reader, hear func(record)) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 16<<20)
	for lines.Scan() {
		var rec record
		if json.Unmarshal(lines.Bytes(), &rec) == nil {
			hear(rec)
		}
	}
}
