package torture_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

var (
	length = flag.Duration("time", 20*time.Second, "how long faults are injected")
	seed   = flag.Uint64("seed", 1, "which scenario; 0: a new one")
)

func TestMain(m *testing.M) {
	fleet.Main()
	servers.Main(m)
}

// run is one scenario on its servers.
type run struct {
	*fleet.Fleet
	t       *testing.T
	redis   *servers.Redis
	pg      *servers.Postgres
	weather *servers.Weather
	random  *rand.Rand
	crew    []*fleet.Process // those at work
	count   map[string]int   // faults so far, by kind
	clock   time.Duration    // how far Redis's is ahead
}

func TestTorture(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	fmt.Printf("torture: seed %d for %v. The scenario repeats with its seed; real processes do not repeat exactly.\n", *seed, *length)
	redis, pg := newRedis(t), servers.NewPostgres(t)
	r := &run{
		Fleet: fleet.New(t, fleet.Single(redis.Addr()), pg.URL()), t: t, redis: redis, pg: pg,
		weather: servers.NewWeather(t, redis.Addr()), random: rand.New(rand.NewPCG(*seed, 0)), count: map[string]int{},
	}
	r.Within = 30 * time.Second
	for range processes {
		r.hire()
	}
	for end := time.Now().Add(*length); time.Now().Before(end); {
		r.pause(200, 1500)
		f := faults[r.random.IntN(len(faults))]
		r.count[f.name]++
		f.inject(r)
	}
	r.print(r.Finish())
}

// processes is how many are at work at a time.
const processes = 4

// pause waits for a drawn time in ms.
func (r *run) pause(least, most int) { <-time.After(r.drawn(least, most)) }

func (r *run) drawn(least, most int) time.Duration {
	return time.Duration(least+r.random.IntN(most-least)) * time.Millisecond
}

// hire starts a process, each a little different.
func (r *run) hire() {
	i := r.random.Uint64()
	s := fleet.Spec{
		Run: true, Batches: i&1 == 0, DeferFailures: i&2 == 0, MaxDepth: 300,
		Submit: &fleet.Load{
			Resources: 40, Goroutines: 6, Seed: i, Push: 20, Later: 10, Twice: 2, Pause: time.Millisecond,
			Misbehave: []string{"fail", "panic", "stall"}[i/8%3], Every: 500,
		},
		MaxHold: 2 * time.Second, Deaf: i&16 == 0,
	}
	if i&64 == 0 {
		s.Think = 20 * time.Millisecond
	}
	if i&4 == 0 {
		s.Redis = fleet.Single(r.weather.Addr())
	}
	if i/32%4 == 0 {
		steps := []string{"admit", "push", "take", "claim", "leave", "refresh", "commit"}
		s.Lose = []fleet.Loss{{Step: steps[i/128%7], Every: 50}}
	}
	r.crew = append(r.crew, r.Start(s))
}

// dismiss takes the nth process off the list of those at work.
func (r *run) dismiss(n int) *fleet.Process {
	p := r.crew[n]
	r.crew = slices.Delete(r.crew, n, n+1)
	return p
}

// print is the table. What is not zero at its end has failed the test.
func (r *run) print(rep *fleet.Report) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, n int) { fmt.Fprintf(w, "%s\t%d\t\n", name, n) }
	fmt.Fprintf(w, "seed %d, %v\t\t\n", *seed, *length)
	row("writes accepted", rep.Accepted)
	row("in effect", rep.Effects)
	row("outcome unknown", rep.Unknown)
	row("refused", rep.Refused)
	all := 0
	for _, name := range slices.Sorted(maps.Keys(r.count)) {
		row("fault: "+name, r.count[name])
		all += r.count[name]
	}
	row("fault: reply lost", rep.LostReplies)
	row("faults", all+rep.LostReplies)
	row("functions that failed", rep.Failed)
	row("redelivered", rep.Redelivered)
	row("locks lost", rep.LocksLost)
	row("refused by the fence", rep.Stale)
	row("dead", rep.Dead)
	row("violations", len(rep.Violations))
	_ = w.Flush()
	if len(rep.Violations) > 0 {
		fmt.Println(strings.Join(rep.Violations[:min(20, len(rep.Violations))], "\n"))
	}
}
