package tune

import (
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"sync"
	"time"
)

// Write is one write: so much for an account.
type Write struct {
	Seq     int // from 1 on, in each run
	Account string
	Amount  int64

	// Called is when it was submitted, or was due to be, since the run began.
	Called time.Duration
}

// key is the write's idempotency key.
func (w Write) key() string { return strconv.Itoa(w.Seq) }

func account(k int) string { return "account-" + strconv.Itoa(k+1) }

// source makes the writes of a run, for writers that come for one each time that
// they are free.
type source struct {
	begin time.Time
	end   time.Duration // no write is called later
	gap   time.Duration // the mean time between two writes; 0: none

	// mu guards all below.
	mu   sync.Mutex
	rand *rand.Rand
	sums []float64 // sums[k] is the weight of the accounts 0 to k
	due  time.Duration
	seq  int
}

func newSource(l Load, rate float64, end time.Duration, seed uint64) *source {
	s := &source{end: end, rand: rand.New(rand.NewPCG(seed, 0)), sums: make([]float64, l.Resources)}
	if rate > 0 {
		s.gap = time.Duration(float64(time.Second) / rate)
	}
	sum := 0.0
	for k := range s.sums {
		sum += math.Pow(float64(k+1), -l.Skew)
		s.sums[k] = sum
	}
	return s
}

// next returns the next write, and false when there is none any more. At a rate,
// a write that nobody was free for has been due for a while: it counts from then
// on, or a setting that keeps the writers waiting would look quick.
func (s *source) next() (Write, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.due
	if s.gap == 0 {
		at = time.Since(s.begin)
	}
	if at >= s.end {
		return Write{}, false
	}
	s.due += time.Duration(s.rand.ExpFloat64() * float64(s.gap))
	s.seq++
	pick := s.rand.Float64() * s.sums[len(s.sums)-1]
	k := min(sort.SearchFloat64s(s.sums, pick), len(s.sums)-1)
	return Write{Seq: s.seq, Account: account(k), Amount: s.rand.Int64N(2001) - 1000, Called: at}, true
}
