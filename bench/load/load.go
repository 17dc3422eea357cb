package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/deferlock/deferlock/bench/measure"
)

// Load is what a round asks of a peer.
type Load struct {
	Writers   int           // goroutines that hand writes over
	Resources int           // 0: no two writes share one for a long time
	Skew      float64       // exponent of the Zipf distribution; 0: all resources alike
	Takes     time.Duration // the work of a write
	Most      int           // hand over no more than so many writes
	For       time.Duration // and no longer than this
	Patience  time.Duration // wait no longer than this in all
	PerSecond float64       // 0: each writer as fast as it can; else so many come in all, at random moments
	Seed      uint64
	First     int // number of the first writer, of those in all processes
	FirstSeq  int // number of the first write
}

// spread is the number of resources of a writer that shares none.
const spread = 128

// names returns the names of all resources of the load.
func (l Load) names() []string {
	n := l.Resources
	if n == 0 {
		n = (l.First + l.Writers) * spread
	}
	names := make([]string, n)
	for i := range names {
		names[i] = "account-" + strconv.Itoa(i)
	}
	return names
}

// Warmup returns a load of some writes that do not count and are in nobody's way.
func (l Load) Warmup() Load {
	n := max(2*l.Writers, 64)
	return Load{Writers: l.Writers, First: l.First, Most: n, For: 5 * time.Second, FirstSeq: -n}
}

// picker returns a function that draws the resource of a writer's next write.
func (l Load) picker(writer int) func() int {
	if l.Resources == 0 {
		i := -1
		return func() int {
			i = (i + 1) % spread
			return (l.First+writer)*spread + i
		}
	}
	if l.Resources == 1 {
		return func() int { return 0 }
	}
	r := rand.New(rand.NewPCG(l.Seed, uint64(l.FirstSeq+writer)))
	if l.Skew > 1 {
		z := rand.NewZipf(r, l.Skew, 1, uint64(l.Resources-1))
		return func() int { return int(z.Uint64()) }
	}
	return func() int { return r.IntN(l.Resources) }
}

// Prepare does what can be done before the first write, and returns what hands
// the writes over to p: that returns when the last call has, and waits for none
// to be done.
func (l Load) Prepare() func(ctx context.Context, p Peer, rec *measure.Recorder) {
	names := l.names()
	return func(ctx context.Context, p Peer, rec *measure.Recorder) {
		began := time.Now()
		next := l.schedule(began)
		var writers sync.WaitGroup
		for n := range l.Writers {
			pick := l.picker(n)
			writers.Go(func() {
				for ctx.Err() == nil {
					at, ok := next(ctx)
					if !ok {
						return
					}
					place, ok := rec.Next()
					if !ok {
						return
					}
					i := pick()
					w := Write{Seq: l.FirstSeq + place, Index: i, Resource: names[i], Note: Note}
					rec.Submitted(place, submit(ctx, p, w, at))
				}
			})
		}
		writers.Wait()
	}
}

func submit(ctx context.Context, p Peer, w Write, at int64) measure.Submit {
	s := measure.Submit{Seq: int32(w.Seq), Resource: int32(w.Index), Call: at}
	if at == 0 {
		s.Call = measure.Now()
	}
	switch err := p.Do(ctx, w); {
	case err == nil:
		s.Return = measure.Now()
	case ctx.Err() != nil:
		s.Return = measure.CutOff
	}
	return s
}

// schedule returns a function that waits for the next write to come, until there
// are no more, and says when it should have come: a writer that is held up has
// its delay counted. Without a rate there is no such moment.
func (l Load) schedule(began time.Time) func(context.Context) (at int64, ok bool) {
	if l.PerSecond == 0 {
		return func(context.Context) (int64, bool) { return 0, time.Since(began) < l.For }
	}
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(l.Seed, 1))
	moment := began
	return func(ctx context.Context) (int64, bool) {
		mu.Lock()
		moment = moment.Add(time.Duration(r.ExpFloat64() / l.PerSecond * float64(time.Second)))
		at := moment
		mu.Unlock()
		if at.Sub(began) > l.For {
			return 0, false
		}
		select {
		case <-ctx.Done():
			return 0, false
		case <-time.After(time.Until(at)):
			return at.UnixNano(), true
		}
	}
}

// Await returns when done reports so many writes, or when ctx ends. It says
// whether they were all done.
func Await(ctx context.Context, count func() int, want int) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for count() < want {
		select {
		case <-ctx.Done():
			return count() >= want
		case <-tick.C:
		}
	}
	return true
}

// Started is a peer whose Run goes on in the background.
type Started struct {
	stop func() error
}

// Start runs p until Stop.
func Start(ctx context.Context, p Peer) *Started {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return &Started{sync.OnceValue(func() error {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("load: Run: %w", err)
		}
		return nil
	})}
}

// Stop ends Run, waits for it and returns its error. It may be called again.
func (s *Started) Stop() error { return s.stop() }
