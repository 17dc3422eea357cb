package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
)

// observer watches the load being done, and kills.
type observer struct {
	credits *credits
	job     job
	rdb     *redis.Client
	db      *pgxpool.Pool
	out     io.Writer

	queue   *deferral.Queue
	waiting map[string]int // by account
	written int
	moved   time.Time // when anything happened last

	setBack time.Duration // how far the wall clock was set back meanwhile
}

const (
	tick = 200 * time.Millisecond

	// stalled is how long nothing may happen before the run is given up.
	stalled = 30 * time.Second

	// settled is how long the plain recipe's queue is empty and nothing is
	// written before it is taken to be done: some of it will never be.
	settled = 2 * time.Second
)

// watch returns when all has been submitted and nothing waits.
func (o *observer) watch(ctx context.Context, f *fleet) error {
	var err error
	if o.queue, err = deferral.New(o.rdb, deferral.Config{Name: o.job.Name, LockTTL: o.credits.lockTTL()}); err != nil {
		return err
	}
	s := screen{out: o.out, terminal: isTerminal(o.out)}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	before := time.Now()
	last := -1
	o.moved = before
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-ticker.C:
			o.setBack = max(o.setBack, steppedBack(now.Sub(before), now.Round(0).Sub(before.Round(0))))
			before = now
		}
		if err := o.look(ctx); err != nil {
			return err
		}
		t := f.tally()
		if t.failed != nil {
			return t.failed
		}
		if progress := o.written + t.accepted; progress != last {
			o.moved, last = before, progress
		}
		o.killSome(f, t)
		s.show(o.credits.load, t, o.written, o.waiting)
		if o.done(t, before.Sub(o.moved)) {
			s.end()
			return nil
		}
		if before.Sub(o.moved) > stalled {
			return fmt.Errorf("nothing has happened for %v: %d of %d accepted, %d written; the last error was: %s",
				stalled, t.accepted, o.credits.Writes, o.written, cmp.Or(t.lastError, "none"))
		}
	}
}

// killSome kills in even steps: every time that another part of all the
// submitting and all the writing has been done.
func (o *observer) killSome(f *fleet, t tally) {
	if done := o.written + t.accepted; t.killed < o.credits.Kill && done*(o.credits.Kill+1) >= 2*o.credits.Writes*(t.killed+1) {
		f.kill()
	}
}

// done says whether the load is done. still is for how long nothing has moved.
func (o *observer) done(t tally, still time.Duration) bool {
	switch {
	case t.accepted < o.credits.Writes || total(o.waiting) > 0 || t.killed < o.credits.Kill && o.written < o.credits.Writes:
		return false
	case o.credits.Naive:
		return still >= settled
	}
	return true
}

// look asks the servers how far it has come.
func (o *observer) look(ctx context.Context) error {
	err := o.db.QueryRow(ctx, "SELECT coalesce(sum(version), 0)::int FROM accounts").Scan(&o.written)
	if err != nil {
		return fmt.Errorf("count what is written: %w", err)
	}
	o.waiting = map[string]int{}
	if o.credits.Naive {
		return o.lookAtPlain(ctx)
	}
	for l, err := range o.queue.Lanes(ctx) {
		if err != nil {
			return fmt.Errorf("look at the queue: %w", err)
		}
		o.waiting[l.Resource] = l.Depth
	}
	return nil
}

// lookAtPlain is look for the plain recipe, whose queue does not tell for which
// account a write waits.
func (o *observer) lookAtPlain(ctx context.Context) error {
	n, err := o.rdb.ZCard(ctx, naiveQueue(o.job.Name)).Result()
	if err != nil {
		return fmt.Errorf("look at the queue: %w", err)
	}
	o.waiting["one queue for all"] = int(n)
	return nil
}

// left is the finding that nothing was left behind in Redis.
func (o *observer) left(ctx context.Context) (finding, error) {
	f := finding{good: "nothing waits any more, and there are no dead letters", bad: "writes are left in the queue"}
	s, err := o.queue.Stats(ctx)
	if err != nil {
		return f, err
	}
	for name, n := range map[string]int{"waiting": s.Waiting, "put aside": s.Later, "dead": s.Dead} {
		if n > 0 {
			f.count += n
			f.examples = append(f.examples, fmt.Sprintf("%d %s", n, name))
		}
	}
	return f, nil
}

// clock is the finding that calls and returns of several processes can be
// compared. All of them read the wall clock of this one machine.
func (o *observer) clock() finding {
	f := finding{
		good: "this machine's clock was not set back meanwhile",
		bad:  "the clock was set back meanwhile: what was overtaken cannot be told, run it again",
	}
	if o.setBack > 0 {
		f.count, f.examples = 1, []string{fmt.Sprintf("by %v", o.setBack)}
	}
	return f
}

// steppedBack is how far the wall clock was set back while so much time passed,
// by the monotonic clock and by the wall clock. A clock that is corrected slowly
// never goes back.
func steppedBack(passed, wall time.Duration) time.Duration {
	if back := passed - wall; back > 5*time.Millisecond {
		return back
	}
	return 0
}

// screen shows the numbers: on a terminal in place, elsewhere in plain lines.
type screen struct {
	out      io.Writer
	terminal bool
	shown    bool
	last     time.Time
}

// plainEvery is how often a plain line is written.
const plainEvery = 2 * time.Second

func (s *screen) show(l load, t tally, written int, waiting map[string]int) {
	numbers := fmt.Sprintf("written %d of %d   deferred %d   retried %d   waiting %d   killed %d",
		written, l.Writes, t.deferred, t.retried, total(waiting), t.killed)
	if !s.terminal {
		if now := time.Now(); now.Sub(s.last) >= plainEvery {
			s.last = now
			fmt.Fprintf(s.out, "%s   hottest: %s\n", numbers, hottest(waiting, 2))
		}
		return
	}
	if s.shown {
		fmt.Fprint(s.out, "\x1b[3A") // up to the first of the three lines
	}
	s.shown = true
	const width = 60
	full := min(width*written/l.Writes, width)
	fmt.Fprintf(s.out, "\r\x1b[K[%s%s] %d %%\n\x1b[K%s\n\x1b[Khottest: %s\n",
		strings.Repeat("#", full), strings.Repeat(".", width-full), min(100*written/l.Writes, 100), numbers, hottest(waiting, 3))
}

func (s *screen) end() { fmt.Fprintln(s.out) }

func total(waiting map[string]int) int {
	sum := 0
	for _, n := range waiting {
		sum += n
	}
	return sum
}

// hottest names the accounts for which most writes wait.
func hottest(waiting map[string]int, n int) string {
	names := make([]string, 0, len(waiting))
	for name, depth := range waiting {
		if depth > 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "nothing waits"
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(waiting[b], waiting[a]), strings.Compare(a, b))
	})
	var text []string
	for _, name := range names[:min(n, len(names))] {
		text = append(text, fmt.Sprintf("%s (%d)", name, waiting[name]))
	}
	return strings.Join(text, ", ")
}

// isTerminal says whether somebody looks at out, in place.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
