package worker

import (
	"sync"
	"time"
)

// busy counts how often in a row a lane's write came back as [Busy] here. That
// is never an attempt, so its attempts do not tell, but a database that is down
// should be asked ever less often, and Redis too.
type busy struct {
	mu    sync.Mutex
	lanes map[string]busyLane
}

type busyLane struct {
	times int
	last  time.Time
}

const (
	// busySteps bounds how far the backoff grows: the lane is to go on soon
	// after the database has come back. By default it is 3.2 s.
	busySteps = 6

	busyForget = time.Minute // after so long, another process has had the lane
	busyMost   = 10_000
)

// again counts another time for lane, and returns how many there were in a row,
// up to busySteps.
func (b *busy) again(lane string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	l := b.lanes[lane]
	if now.Sub(l.last) > busyForget {
		l.times = 0
	}
	if b.lanes == nil {
		b.lanes = map[string]busyLane{}
	}
	if len(b.lanes) >= busyMost {
		for name, l := range b.lanes {
			if now.Sub(l.last) > busyForget {
				delete(b.lanes, name)
			}
		}
	}
	l.times, l.last = min(l.times+1, busySteps), now
	if _, known := b.lanes[lane]; known || len(b.lanes) < busyMost {
		b.lanes[lane] = l
	}
	return l.times
}

// over says that a write of lane took effect.
func (b *busy) over(lane string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lanes, lane)
}
