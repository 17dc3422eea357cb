package backlog_test

import (
	"fmt"
	"math"
	"os"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/deferlock/deferlock/integration/servers"
)

// hot puts all writes into so many lanes.
func hot(lanes int) func(i int) string {
	return func(i int) string { return fmt.Sprintf("account-%07d", i%lanes) }
}

// cold gives each write a lane of its own.
func cold(i int) string { return hot(i + 1)(i) }

func alone(int) string { return "" }

// row is a way in which writes lie in Redis.
type row struct {
	name string
	of   func(i int) string // the resource of the ith write; nil: the plain layout
	most float64            // how many times what the plain layout takes it may take
}

var rows = []row{
	{"plain kaito layout", nil, 1},
	{"the same, with resource and kind in the payload", nil, math.Inf(1)},
	{"all in one lane", hot(1), 1.1},
	{"in 1,000 lanes", hot(1000), 1.1},
	{"each in a lane of its own", cold, 1.5},
	{"each without a resource", alone, 1.6},
}

// The payloads: of one size, and of many, which no border between the sizes that
// Redis's allocator gives out favours.
var payloads = []struct {
	name string
	size func(i int) int
}{
	{"100 B", func(int) int { return 100 }},
	{"50-149 B", func(i int) int { return 50 + i%100 }},
	{"1000 B", func(int) int { return 1000 }},
}

// A payload in the plain layout has to say what it is for.
const said = len(kind) + len("account-0000000")

func TestMemoryOfADeferredWriteNextToThePlainLayout(t *testing.T) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "bytes of Redis's memory per write, %d writes\t", *writes)
	for _, p := range payloads {
		fmt.Fprintf(w, "payload %s\t\t", p.name)
	}
	fmt.Fprintln(w)
	plain := make([]float64, len(payloads))
	for i, r := range rows {
		fmt.Fprintf(w, "%s\t", r.name)
		for j, p := range payloads {
			size := p.size
			if i == 1 {
				size = func(i int) int { return p.size(i) + said }
			}
			bytes := perWrite(t, size, r.of)
			if i == 0 {
				plain[j] = bytes
			}
			fmt.Fprintf(w, "%.0f\t%.2f\t", bytes, bytes/plain[j])
			if bytes > r.most*plain[j] {
				t.Errorf("%s, payload %s: %.0f bytes a write, the plain layout takes %.0f", r.name, p.name, bytes, plain[j])
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

// perWrite is what one write takes when many wait, besides what an empty Redis
// with the scripts loaded takes.
func perWrite(t *testing.T, size func(i int) int, of func(i int) string) float64 {
	s := newStore(t)
	defer s.redis.Kill() // or all of them stand until the test ends
	if of == nil {
		before := s.settled()
		s.pushPlainly(*writes, size)
		return float64(s.settled()-before) / float64(*writes)
	}
	s.push(0, 1, size, of) // Redis remembers the script from here on
	before := s.settled()
	s.push(1, 1+*writes, size, of)
	return float64(s.settled()-before) / float64(*writes)
}

// settled is the memory in use once nobody but us is connected: buffers of
// connections do not count.
func (s *store) settled() int {
	servers.Wait(s.t, 10*time.Second, "the other connections to end", func() bool { return s.info("connected_clients") == 1 })
	return s.info("used_memory")
}
