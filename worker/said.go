package worker

import (
	"sync"
	"time"
)

// said remembers what was logged, so that a state that lasts is logged once a
// minute and not at every look at it.
type said struct {
	mu sync.Mutex
	at map[[2]string]time.Time
}

const (
	sayAgain = time.Minute
	saidMost = 1000 // so many at once are no news any more, and take no memory
)

// first tells whether what about whom has not been said for a minute.
func (s *said) first(what, whom string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, now := [2]string{what, whom}, time.Now()
	if at, ok := s.at[key]; ok && now.Sub(at) < sayAgain {
		return false
	}
	if len(s.at) >= saidMost {
		for k, at := range s.at {
			if now.Sub(at) >= sayAgain {
				delete(s.at, k)
			}
		}
	}
	if len(s.at) >= saidMost {
		return false
	}
	if s.at == nil {
		s.at = map[[2]string]time.Time{}
	}
	s.at[key] = now
	return true
}
