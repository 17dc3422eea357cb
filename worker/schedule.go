package worker

import (
	"sync"
	"time"
)

// schedule knows when each shard should be looked at next.
type schedule struct {
	// changed has a token when a moment was moved forward since it was read.
	changed chan struct{}

	// mu guards at.
	mu sync.Mutex
	at []time.Time
}

// newSchedule returns a schedule by which every shard should be looked at now.
func newSchedule(shards int) *schedule {
	s := &schedule{changed: make(chan struct{}, 1), at: make([]time.Time, shards)}
	for i := range s.at {
		s.at[i] = time.Now()
	}
	return s
}

// soon asks for a look at shard in d, unless it is looked at earlier anyway.
func (s *schedule) soon(shard int, d time.Duration) {
	at := time.Now().Add(d)
	s.mu.Lock()
	earlier := at.Before(s.at[shard])
	if earlier {
		s.at[shard] = at
	}
	s.mu.Unlock()
	if earlier {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// first is the shard that should be looked at first, and in how long.
func (s *schedule) first() (shard int, in time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.at {
		if at.Before(s.at[shard]) {
			shard = i
		}
	}
	return shard, time.Until(s.at[shard])
}

// begin notes that shard is being looked at: only what is asked for from now on
// is earlier than most.
func (s *schedule) begin(shard int, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[shard] = time.Now().Add(most)
}
