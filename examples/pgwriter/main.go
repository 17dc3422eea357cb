// Command pgwriter lets several processes write to accounts in Postgres through
// deferlock, kills some of them on the way, and then shows from the database
// that every accepted write is there exactly once, in order, and that no two
// overlapped.
//
// It needs no preparation. It takes the Redis of REDIS_URL, a redis-server on
// the PATH, or an imitation; and the Postgres of DATABASE_URL, one that it
// starts with PostgreSQL's programs or with Docker, or one that it downloads.
// All that it starts and makes is removed at the end, also after Ctrl-C.
//
// It exits with 0 when the proof holds, 1 when it does not or could not be
// made, 2 for wrong flags, and 130 when it was interrupted. With -naive it
// shows what goes wrong without deferlock, and exits with 0.
//
// With -tune as its first argument it helps in choosing batch and lookback
// instead; see package tune.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

func main() {
	if told := os.Getenv(processKey); told != "" {
		if err := process(told); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// They stay caught to the end: an impatient second Ctrl-C must not leave
	// servers and directories behind. Nor must a reader that goes away: SIGPIPE.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without a process around it.
func run(ctx context.Context, args []string, out, problems io.Writer) (code int) {
	logging.Disable() // go-redis: the errors come back from the calls
	if len(args) > 0 && (args[0] == "-tune" || args[0] == "--tune") {
		return runTune(ctx, args[1:], out, problems)
	}
	var l load
	flags := flag.NewFlagSet("pgwriter", flag.ContinueOnError)
	flags.SetOutput(problems)
	l.flags(flags)
	tune := flags.Bool("tune", false, "help in choosing batch and lookback instead; it must come first, and has flags of its own: -tune -h")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *tune:
		fmt.Fprintln(problems, "pgwriter: -tune must come first")
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(problems, "pgwriter: %q: there are flags only\n", flags.Arg(0))
		return 2
	}
	if err := l.validate(); err != nil {
		fmt.Fprintln(problems, "pgwriter:", err)
		return 2
	}
	if l.Seed == 0 {
		l.Seed = uint64(rand.Uint32())
	}
	proved, err := demonstrate(ctx, newLoad(l), out)
	code = exitCode(ctx, err, problems)
	if code == 0 && !proved && !l.Naive {
		code = 1
	}
	return code
}

// exitCode says why it could not be done, if so.
func exitCode(ctx context.Context, err error, problems io.Writer) int {
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(problems, "pgwriter: interrupted; all it started has been removed")
		return 130
	case err != nil:
		fmt.Fprintln(problems, "pgwriter:", err)
		return 1
	}
	return 0
}

// demonstrate starts what is needed, has the load done, and looks into the
// database. Whatever it started is gone when it returns.
func demonstrate(ctx context.Context, c *credits, out io.Writer) (proved bool, err error) {
	introduce(out, c)
	cache, err := servers.Redis(ctx)
	if err != nil {
		return false, err
	}
	defer cache.Stop()
	fmt.Fprintln(out, "Redis:   ", cache.About)
	database, err := servers.Postgres(ctx, func(what string) { fmt.Fprintln(out, "Postgres:", what) })
	if err != nil {
		return false, err
	}
	defer database.Stop()
	fmt.Fprintln(out, "Postgres:", database.About)

	j := job{Load: c.load, Name: fmt.Sprintf("pgwriter_%08x", rand.Uint32()), Redis: cache.URL, Postgres: database.URL}
	rdb, err := connect(cache.URL)
	if err != nil {
		return false, err
	}
	defer rdb.Close()
	db, err := openLedger(ctx, database.URL, j.Name, 2)
	if err != nil {
		return false, err
	}
	defer db.Close()
	defer func() { err = errors.Join(err, tidy(ctx, j.Name, cache, database, rdb, db)) }()
	if err := createLedger(ctx, db, j.Name, c); err != nil {
		return false, err
	}
	return show(ctx, &observer{credits: c, job: j, rdb: rdb, db: db, out: out})
}

// connect returns a client as deferlock wants it.
func connect(url string) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	opts.ContextTimeoutEnabled = true
	return redis.NewClient(opts), nil
}

// show has the load done and looks into the database.
func show(ctx context.Context, o *observer) (proved bool, err error) {
	f, err := newFleet(o.job)
	if err != nil {
		return false, err
	}
	// They end before the servers do, whatever happens. In order they end only
	// where somebody still wants to know what they did.
	defer f.stop(0)
	began := time.Now()
	if err := f.start(); err != nil {
		return false, err
	}
	if err := o.watch(ctx, f); err != nil {
		return false, err
	}
	took := o.moved.Sub(began)
	f.stop(10 * time.Second)
	if err := saveSubmissions(ctx, o.db, o.credits, f.submissions); err != nil {
		return false, err
	}
	findings, err := prove(ctx, o.db, o.credits.Naive)
	if err != nil {
		return false, err
	}
	if !o.credits.Naive {
		left, err := o.left(ctx)
		if err != nil {
			return false, err
		}
		findings = append(findings, left)
	}
	findings = append(findings, o.clock())
	return report(o.out, o.credits, f.tally(), took, findings), nil
}

// tidy removes what was put into servers that were there before.
func tidy(ctx context.Context, name string, cache, database *servers.Server, rdb *redis.Client, db *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var err error
	if database.Found {
		err = dropLedger(ctx, db, name)
	}
	if cache.Found {
		err = errors.Join(err, servers.RemoveKeys(ctx, rdb, name)) // both recipes have the name in their keys
	}
	if err != nil {
		return fmt.Errorf("what was put under the name %s could not be removed: %w", name, err)
	}
	return nil
}
