package worker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

// A write that was busy at its last attempt was buried.
func TestBusyIsNeverAnAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{MaxAttempts: 1, Backoff: every(time.Second)})
		var attempts []int
		x := wrap(t, w, func(ctx context.Context, _ entry) error {
			in, _ := worker.FromContext(ctx)
			if attempts = append(attempts, in.Attempt); len(attempts) < 5 {
				return worker.Busy(errWrite)
			}
			return nil
		})
		push(t, x, entry{To: "a", ID: "1"})
		stop := start(t, w)
		time.Sleep(time.Minute)
		stop()
		if !slices.Equal(attempts, []int{1, 1, 1, 1, 1}) {
			t.Errorf("attempts %v", attempts)
		}
		empty(t, rdb, w)
	})
}

// With a database that was down, every lane was tried again ten times a second.
func TestBusyLaneIsTriedEverLessOften(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Backoff: func(n int) time.Duration { return time.Duration(n) * time.Second }})
		began := time.Now()
		var at []time.Duration
		x := wrap(t, w, func(_ context.Context, e entry) error {
			at = append(at, time.Since(began))
			if len(at) == 9 { // it works for a moment
				return nil
			}
			return worker.Busy(errWrite)
		})
		push(t, x, entry{To: "a", ID: "1"}, entry{To: "a", ID: "2"})
		stop := start(t, w)
		time.Sleep(40 * time.Second)
		stop()
		var seconds []int
		for _, d := range at {
			seconds = append(seconds, int(d.Round(time.Second).Seconds()))
		}
		want := []int{0, 1, 3, 6, 10, 15, 21, 27, 33, 33, 34, 36, 39}
		if !slices.Equal(seconds, want) {
			t.Errorf("tried at %v s, want %v", seconds, want)
		}
	})
}
