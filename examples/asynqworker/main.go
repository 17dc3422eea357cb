// Command asynqworker runs deferlock's writer inside asynq's task handlers, in
// several processes: tasks for the same account do not wait for each other and
// are not tried again by asynq, but deferred, also when they fail. At the end it
// shows from the database that every task took effect exactly once.
//
// It needs no preparation: it finds or starts the same servers as
// examples/pgwriter, and removes what it started, also after Ctrl-C.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
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
	// They stay caught to the end, so that what was started is removed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without a process around it.
func run(ctx context.Context, args []string, out, problems io.Writer) (code int) {
	logging.Disable() // go-redis: the errors come back from the calls
	flags := flag.NewFlagSet("asynqworker", flag.ContinueOnError)
	flags.SetOutput(problems)
	d := demo{out: out}
	flags.IntVar(&d.processes, "processes", 3, "worker `processes`")
	flags.IntVar(&d.tasks, "tasks", 2000, "`tasks` to enqueue")
	flags.IntVar(&d.accounts, "resources", 100, "`accounts` they write to")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0 || d.processes < 1 || d.processes > 7 || d.tasks < 1 || d.accounts < 1:
		fmt.Fprintln(problems, "asynqworker: want 1 to 7 processes, at least 1 task, at least 1 resource, and nothing else")
		return 2
	}
	switch wrong, err := d.run(ctx); {
	case ctx.Err() != nil:
		fmt.Fprintln(problems, "asynqworker: interrupted; all it started has been removed")
		return 130
	case err != nil:
		fmt.Fprintln(problems, "asynqworker:", err)
		return 1
	case wrong > 0:
		return 1
	}
	return 0
}

// demo is one run of the example.
type demo struct {
	processes, tasks, accounts int
	out                        io.Writer

	job   job
	db    *pgxpool.Pool
	asynq *asynq.Inspector
}

// run starts what is needed, has the tasks done, and counts what went wrong.
// Whatever it started is gone when it returns.
func (d *demo) run(ctx context.Context) (wrong int, err error) {
	cache, err := servers.Redis(ctx)
	if err != nil {
		return 0, err
	}
	defer cache.Stop()
	fmt.Fprintln(d.out, "Redis:   ", cache.About)
	database, err := servers.Postgres(ctx, func(what string) { fmt.Fprintln(d.out, "Postgres:", what) })
	if err != nil {
		return 0, err
	}
	defer database.Stop()
	fmt.Fprintln(d.out, "Postgres:", database.About)

	d.job = job{Name: fmt.Sprintf("asynqworker_%08x", rand.Uint32()), Redis: cache.URL, Postgres: database.URL}
	opts, err := redis.ParseURL(cache.URL)
	if err != nil {
		return 0, err
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	d.asynq = asynq.NewInspectorFromRedisClient(rdb)
	if d.db, err = openLedger(ctx, database.URL, d.job.Name); err != nil {
		return 0, err
	}
	defer d.db.Close()
	defer func() { err = errors.Join(err, d.tidy(ctx, cache, database, rdb)) }()
	if err := createLedger(ctx, d.db, d.job.Name); err != nil {
		return 0, err
	}
	if err := d.enqueue(ctx, asynq.NewClientFromRedisClient(rdb)); err != nil {
		return 0, err
	}
	return d.work(ctx)
}

// enqueue makes the accounts and the tasks. A third of the tasks is for the
// first account.
func (d *demo) enqueue(ctx context.Context, client *asynq.Client) error {
	for k := range d.accounts {
		if _, err := d.db.Exec(ctx, `INSERT INTO accounts (account) VALUES ($1)`, fmt.Sprintf("account-%d", k+1)); err != nil {
			return fmt.Errorf("open an account: %w", err)
		}
	}
	var rows [][]any
	for i := range d.tasks {
		k := rand.IntN(3 * d.accounts / 2)
		if k >= d.accounts {
			k = 0
		}
		id, c := fmt.Sprintf("task-%d", i+1), Credit{Account: fmt.Sprintf("account-%d", k+1), Amount: rand.Int64N(2001) - 1000}
		payload, err := json.Marshal(c)
		if err != nil {
			return err
		}
		if _, err := client.EnqueueContext(ctx, asynq.NewTask("credit", payload), asynq.TaskID(id), asynq.Queue(d.job.Name)); err != nil {
			return fmt.Errorf("enqueue a task: %w", err)
		}
		rows = append(rows, []any{id, c.Account, c.Amount})
	}
	_, err := d.db.CopyFrom(ctx, pgx.Identifier{"tasks"}, []string{"task", "account", "amount"}, pgx.CopyFromRows(rows))
	if err != nil {
		return fmt.Errorf("save the tasks: %w", err)
	}
	fmt.Fprintf(d.out, "%d tasks for %d accounts, a third of them for account-1; every tenth fails twice before it succeeds.\n", d.tasks, d.accounts)
	return nil
}

// work has the tasks done by worker processes.
func (d *demo) work(ctx context.Context) (wrong int, err error) {
	f, err := startFleet(d.processes, d.job)
	if err != nil {
		return 0, err
	}
	defer f.kill() // they end before the servers do, whatever happens
	began := time.Now()
	if err := d.wait(ctx, f); err != nil {
		return 0, err
	}
	took := time.Since(began)
	total, err := f.stop()
	if err != nil {
		return 0, err
	}
	return d.report(ctx, took, total)
}

// stalled is how long nothing may happen before the run is given up.
const stalled = 30 * time.Second

// wait returns when as much has taken effect as there are tasks.
func (d *demo) wait(ctx context.Context, f *fleet) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last, moved := -1, time.Now()
	for {
		var done int
		if err := d.db.QueryRow(ctx, `SELECT count(*) FROM entries`).Scan(&done); err != nil {
			return fmt.Errorf("count what is done: %w", err)
		}
		switch {
		case done >= d.tasks:
			return nil
		case done != last:
			last, moved = done, time.Now()
		case time.Since(moved) > stalled:
			return fmt.Errorf("nothing has happened for %v: %d of %d tasks are done", stalled, done, d.tasks)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-f.ended:
			return err
		case <-tick.C:
		}
	}
}

// report says what was done and found, and returns how many findings are bad.
func (d *demo) report(ctx context.Context, took time.Duration, total counts) (wrong int, err error) {
	fmt.Fprintf(d.out, "%d tasks done in %.1f s by %d processes: %d writes were deferred because their account was busy, "+
		"%d because they failed in their task; %d starts were repeats.\n\n",
		d.tasks, took.Seconds(), d.processes, total.Deferred, total.Failed, total.Retried)
	say := func(n int, good, bad string) {
		if n == 0 {
			fmt.Fprintln(d.out, "  ok     ", good)
			return
		}
		wrong++
		fmt.Fprintf(d.out, "  WRONG   %d %s\n", n, bad)
	}
	fmt.Fprintln(d.out, "The database says:")
	for _, c := range checks {
		var n int
		if err := d.db.QueryRow(ctx, c.sql).Scan(&n); err != nil {
			return 0, fmt.Errorf("check that %s: %w", c.good, err)
		}
		say(n, c.good, c.bad)
	}
	info, err := d.asynq.GetQueueInfo(d.job.Name)
	if err != nil {
		return 0, fmt.Errorf("ask asynq: %w", err)
	}
	fmt.Fprintln(d.out, "asynq says:")
	say(d.tasks-info.ProcessedTotal, "it handled each task once", "more tasks were enqueued than handled")
	say(info.FailedTotal, "it never had to try one again", "times a task failed and was tried again")
	return wrong, nil
}

// tidy removes what was put into servers that were there before.
func (d *demo) tidy(ctx context.Context, cache, database *servers.Server, rdb *redis.Client) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var err error
	if database.Found {
		err = dropLedger(ctx, d.db, d.job.Name)
	}
	if cache.Found {
		if e := d.asynq.DeleteQueue(d.job.Name, true); !errors.Is(e, asynq.ErrQueueNotFound) {
			err = errors.Join(err, e)
		}
		err = errors.Join(err, servers.RemoveKeys(ctx, rdb, d.job.Name))
	}
	if err != nil {
		return fmt.Errorf("what was put under the name %s could not be removed: %w", d.job.Name, err)
	}
	return nil
}
