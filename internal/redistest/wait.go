package redistest

import (
	"testing"
	"time"
)

// patience is how long a condition may take: far longer than anything takes on
// an idle machine, because a test must not fail on a busy one.
const patience = 10 * time.Second

// Wait returns as soon as cond is true. After ten seconds it fails the test,
// saying what was waited for. cond is called from the test's goroutine.
func Wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	if !poll(patience, 5*time.Millisecond, cond) {
		t.Fatalf("redistest: waited %v in vain: %s", patience, what)
	}
}

// poll asks cond at once and then at every tick, and reports whether it became
// true in time.
func poll(within, every time.Duration, cond func() bool) bool {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for !cond() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			return cond()
		}
	}
	return true
}
