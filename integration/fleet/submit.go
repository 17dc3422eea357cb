package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deferlock/deferlock/worker"
)

// submitter submits the writes of a process.
type submitter struct {
	spec   Spec
	load   Load
	say    *sayer
	writer *worker.Writer[Write]
	quiet  chan struct{} // closed when nothing more is to be submitted
	count  atomic.Int64

	running sync.WaitGroup
}

func (s *submitter) start(ctx context.Context) {
	for g := range max(s.load.Goroutines, 1) {
		s.running.Go(func() { s.loop(ctx, g) })
	}
}

func (s *submitter) loop(ctx context.Context, g int) {
	random := rand.New(rand.NewPCG(s.load.Seed, uint64(g)))
	for i := 0; s.load.Writes == 0 || i < s.load.Writes; i++ {
		select {
		case <-s.quiet:
			return
		case <-ctx.Done():
			return
		default:
		}
		s.one(ctx, random, fmt.Sprintf("%s-%d-%d", s.spec.Process, g, i))
		if s.load.Pause > 0 {
			rest(s.quiet, s.load.Pause)
		}
	}
}

// one submits a write until it is told what became of it.
func (s *submitter) one(ctx context.Context, random *rand.Rand, id string) {
	w := Write{
		Resource: fmt.Sprintf("r%d", random.IntN(max(s.load.Resources, 1))), ID: id,
		Payload: fmt.Sprintf("%016x", random.Uint64()) + strings.Repeat("x", s.load.Pad),
	}
	if s.load.Every > 0 && s.count.Add(1)%int64(s.load.Every) == 0 {
		w.Do = s.load.Misbehave
	}
	delay := time.Duration(-1)
	if random.IntN(100) < s.load.Push {
		delay = 0
		if random.IntN(100) < s.load.Later {
			delay = time.Duration(random.IntN(200)) * time.Millisecond
		}
	}
	// A write that failed may join its lane anew, behind later ones.
	later := delay > 0 || w.Do != "" && s.spec.OnFailure != int(worker.LaneWaits)
	s.say.say(record{Event: saidCall, ID: w.ID, Resource: w.Resource, Payload: w.Payload, Later: later})
	outcome, text := s.insist(ctx, w, delay)
	s.say.say(record{Event: saidReturn, ID: w.ID, Resource: w.Resource, Outcome: outcome, Text: text})
	if outcome == "accepted" && random.IntN(100) < s.load.Twice {
		_, _ = s.call(ctx, w, delay) // the same write again: it must have no second effect
	}
}

// insist submits a write until it is accepted, and for some seconds at the most.
func (s *submitter) insist(ctx context.Context, w Write, delay time.Duration) (outcome, text string) {
	outcome = "refused"
	end := time.After(insistence)
	for n := 1; ; n++ {
		ran, err := s.call(ctx, w, delay)
		if err == nil {
			return "accepted", ran
		}
		text = err.Error()
		if !errors.Is(err, worker.ErrNotAccepted) {
			outcome = "unknown"
		}
		if s.load.Once || worker.IsPermanent(err) {
			return outcome, text
		}
		select {
		case <-end:
			return outcome, text
		case <-ctx.Done():
			return outcome, text
		case <-time.After(min(time.Duration(n)*20*time.Millisecond, 250*time.Millisecond)):
		}
	}
}

// insistence is how long a write is submitted for that is not accepted.
const insistence = 20 * time.Second

func (s *submitter) call(ctx context.Context, w Write, delay time.Duration) (string, error) {
	timeout := s.load.Timeout
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if delay >= 0 {
		_, err := s.writer.Push(ctx, w, delay)
		return "pushed", err
	}
	out, err := s.writer.Do(ctx, w)
	if out.Ran {
		return "ran", err
	}
	return "deferred", err
}

// rest waits for d, or until done is closed.
func rest(done <-chan struct{}, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
