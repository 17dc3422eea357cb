package tune_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
	"github.com/deferlock/deferlock/examples/pgwriter/tune"
)

func TestEveryAcceptedWriteOfASweepTakesEffectOnce(t *testing.T) {
	database, err := servers.DurablePostgres(t.Context(), func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	defer database.Stop()
	for _, way := range []string{"-push=false", "-push=true"} {
		t.Run(way, func(t *testing.T) {
			var out strings.Builder
			s := parse(t, way, "-writers", "8", "-resources", "2", "-outstanding", "200", "-batches", "1,20", "-lookbacks", "0,20ms", "-time", "50ms", "-rounds", "1")
			at := place(t, &out)
			at.Postgres = database.URL
			res, err := tune.Sweep(t.Context(), s, at)
			if err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			t.Log(out.String())
			check(t, s, res, out.String())
			if left := schemas(t, database.URL, at.Name); left != 0 {
				t.Errorf("%d schemas are left", left)
			}
		})
	}
}

// check looks at what is certain, however slow the machine is.
func check(t *testing.T, s *tune.Settings, res tune.Result, out string) {
	t.Helper()
	c := res.Counts
	if c.Accepted == 0 || c.Effects.Writes != c.Accepted || c.Effects.Different != c.Accepted {
		t.Errorf("%d writes accepted, %d effects of %d different ones", c.Accepted, c.Effects.Writes, c.Effects.Different)
	}
	// The database and the function count transactions independently.
	if c.Effects.Transactions != c.Calls || c.Calls >= c.Accepted {
		t.Errorf("%d transactions, %d calls of the function, %d writes", c.Effects.Transactions, c.Calls, c.Accepted)
	}
	for _, m := range res.Points {
		for _, f := range append(m.Full, m.Rate...) {
			if m.Batch == 1 && f.Writes != f.Transactions || m.Batch > 1 && f.PerTransaction() > float64(m.Batch) {
				t.Errorf("%v: %v writes in %v transactions", m.Point, f.Writes, f.Transactions)
			}
			if s.Load.Push && f.Deferred != 1 {
				t.Errorf("%v: %v of what was pushed were deferred", m.Point, f.Deferred)
			}
		}
	}
	if n := strings.Count(out, "\n"); n != 2*(3+len(res.Points)) {
		t.Errorf("%d lines, want two tables with a row for each point:\n%s", n, out)
	}
	var end strings.Builder
	if err := s.Conclude(res, &end); err != nil || !strings.Contains(end.String(), "Recommended: ") {
		t.Errorf("%v %s", err, &end)
	}
}

// Where a write does not conflict, lookback has nothing to do. Where all do, it
// is what makes batches: fewer transactions for the same writes.
func TestLookbackMakesFewerTransactionsOfTheSameWrites(t *testing.T) {
	s := parse(t, "-writers", "8", "-resources", "4", "-work", "2ms", "-batches", "100", "-outstanding", "500", "-lookbacks", "0,100ms", "-time", "300ms", "-rounds", "1", "-rate", "400", "-push")
	var out strings.Builder
	res, err := tune.Sweep(t.Context(), s, place(t, &out))
	if err != nil {
		t.Fatal(err)
	}
	without, with := res.Points[0].Rate[0], res.Points[1].Rate[0]
	if with.PerTransaction() <= without.PerTransaction() {
		t.Errorf("%.1f writes per transaction with a lookback, %.1f without:\n%s", with.PerTransaction(), without.PerTransaction(), &out)
	}
	if with.P50 < 10*time.Millisecond {
		t.Errorf("half of the writes took less than %v although the lookback is 100ms", with.P50)
	}
}

// lossy is work that says it is done with a write and is not.
type lossy struct {
	tune.Work
	calls atomic.Int64
	times int // how often the tenth transaction takes effect
}

func (l *lossy) Transact(ctx context.Context, ws []tune.Write) error {
	n := 1
	if l.calls.Add(1) == 10 {
		n = l.times
	}
	for range n {
		if err := l.Work.Transact(ctx, ws); err != nil {
			return err
		}
	}
	return nil
}

func TestSweepThatLosesOrRepeatsAWriteFails(t *testing.T) {
	for _, times := range []int{0, 2} {
		s := parse(t, "-writers", "4", "-resources", "2", "-work", "1ms", "-batches", "5", "-lookbacks", "0", "-time", "50ms", "-rounds", "1")
		var out strings.Builder
		_, err := tune.SweepWith(t.Context(), s, place(t, &out), &lossy{Work: tune.NewStopwatch(s.Load), times: times})
		if err == nil || !strings.Contains(err.Error(), "were accepted") {
			t.Errorf("a transaction took effect %d times: error %v", times, err)
		}
	}
}

func TestSweepThatIsInterruptedEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := parse(t, "-work", "1ms", "-batches", "5", "-lookbacks", "0,1m", "-time", "1h")
	began := &onFirstWrite{do: cancel}
	at := place(t, nil)
	at.Out, at.Terminal = began, true
	if _, err := tune.Sweep(ctx, s, at); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
}

// onFirstWrite calls do when it is first written to.
type onFirstWrite struct{ do func() }

func (o *onFirstWrite) Write(p []byte) (int, error) {
	o.do()
	return len(p), nil
}

// place has a Redis of its own.
func place(t *testing.T, out *strings.Builder) tune.Place {
	t.Helper()
	cache, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Stop)
	opts, err := redis.ParseURL(cache.URL)
	if err != nil {
		t.Fatal(err)
	}
	opts.ContextTimeoutEnabled = true
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return tune.Place{Name: "pgtune_test", Redis: rdb, Out: out}
}

func schemas(t *testing.T, url, name string) (n int) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
