package worker

import (
	"sync"
	"time"
)

// left remembers the lanes whose next write no function here is for. For a
// while they are left to other processes: one that looked again as soon as it
// may could win the lane each time, and the one that can run the write never.
type left struct {
	mu    sync.Mutex
	until map[string]time.Time
}

const (
	leaveFor  = 5 * time.Second
	leaveMost = 100 // each is sent along with every look
)

// leave leaves lane to others from now on.
func (l *left) leave(lane string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = map[string]time.Time{}
	}
	if len(l.until) < leaveMost {
		l.until[lane] = time.Now().Add(leaveFor)
	}
}

// lanes are those to be left to others now.
func (l *left) lanes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for lane, until := range l.until {
		if time.Now().Before(until) {
			names = append(names, lane)
		} else {
			delete(l.until, lane)
		}
	}
	return names
}
