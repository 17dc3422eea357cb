package worker_test

import (
	"math"
	"testing"
	"time"

	"github.com/deferlock/deferlock/worker"
)

func TestDefaultBackoffDoublesUpToItsBound(t *testing.T) {
	const first, most = 100 * time.Millisecond, time.Minute
	for attempt, want := range map[int]time.Duration{
		math.MinInt: first, -1: first, 0: first, 1: first, 2: 2 * first, 3: 4 * first, 4: 8 * first, 10: 512 * first,
		11: most, 25: most, 33: most, 64: most, 1_000_000: most, math.MaxInt: most,
	} {
		for random, part := range map[float64]float64{0: 0.5, 0.5: 0.75, 1: 1} {
			d := worker.Exponential(first, most, func() float64 { return random })(attempt)
			if expected := time.Duration(float64(want) * part); (d - expected).Abs() > time.Microsecond {
				t.Errorf("attempt %d, random %v: %v, want %v", attempt, random, d, expected)
			}
		}
	}
}
