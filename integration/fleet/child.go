package fleet

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// variable holds the Spec of a process.
const variable = "DEFERLOCK_FLEET"

// Main is a process of a fleet, if this one was started as that: then it does
// not return. It is the beginning of a package's TestMain.
func Main() {
	text, is := os.LookupEnv(variable)
	if !is {
		return
	}
	logging.Disable()
	var spec Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := process(spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := goleak.Find(
		goleak.IgnoreAnyFunction("github.com/deferlock/deferlock/integration/fleet.(*child).obey"),
		// go-redis looks every second whether a server that is gone is back.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
	); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		os.Exit(3)
	}
	os.Exit(0)
}

// What a fleet can tell a process to do, one line each.
const (
	sayQuiet = "quiet" // submit nothing more, and say so
	sayOpen  = "open"  // go on behind the gate
	sayExit  = "exit"  // end like after a SIGTERM
)

// process is the life of one.
func process(spec Spec) error {
	if spec.Clock != 0 {
		if err := setClock(spec.Clock); err != nil {
			return fmt.Errorf("fleet: set the clock: %w", err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p := &child{spec: spec, say: &sayer{out: os.Stdout}, quiet: make(chan struct{})}
	p.gates = newGates(spec.Gate, p.say)
	p.loss = &lossy{gates: p.gates, plan: spec.Lose, seen: map[string]int{}, say: p.say}

	rdb := p.redis()
	defer rdb.Close()
	db, err := p.postgres(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	go p.obey(stop)
	if spec.Plant == PlantNaive || spec.Plant == PlantRelease {
		return p.naive(ctx, rdb, db)
	}
	return p.work(ctx, rdb, db)
}

// child is a process of a fleet, seen from inside.
type child struct {
	spec  Spec
	say   *sayer
	gates *gates
	loss  *lossy
	quiet chan struct{} // closed when nothing more is to be submitted
}

func (p *child) work(ctx context.Context, rdb redis.UniversalClient, db *pgxpool.Pool) error {
	w, err := worker.New(rdb, p.config())
	if err != nil {
		return err
	}
	f := &function{spec: p.spec, db: db, say: p.say, gates: p.gates}
	kind := worker.Kind[Write]{
		Name: cmp.Or(p.spec.Kind, "write"), Resource: func(w Write) string { return w.Resource },
		IdempotencyKey: func(_ context.Context, w Write) string { return w.ID },
	}
	var writer *worker.Writer[Write]
	if p.spec.Batches {
		writer, err = worker.WrapBatch(w, f.many, kind)
	} else {
		writer, err = worker.Wrap(w, f.one, kind)
	}
	if err != nil {
		return err
	}
	p.say.say(record{Event: saidUp})

	var helpers sync.WaitGroup
	ran := error(nil)
	if p.spec.Run {
		helpers.Go(func() { ran = w.Run(ctx) })
	}
	if p.spec.Submit != nil {
		s := &submitter{spec: p.spec, load: *p.spec.Submit, say: p.say, writer: writer, quiet: p.quiet}
		s.start(context.WithoutCancel(ctx))
		s.running.Wait()
	}
	p.say.say(record{Event: saidQuiet})
	helpers.Wait()
	if !p.spec.Run {
		<-ctx.Done()
	}
	return ran
}

func (p *child) config() worker.Config {
	s := p.spec
	if s.LockTTL == 0 {
		s.LockTTL = defaultTTL
	}
	backoff := func(n int) time.Duration {
		return rand.N(min(time.Duration(n)*20*time.Millisecond, 300*time.Millisecond))
	}
	if s.Patient {
		backoff = nil
	}
	return worker.Config{
		Name: s.Name, LockTTL: s.LockTTL, MaxHold: s.MaxHold, Grace: s.Grace, Lookback: s.Lookback, Poll: s.Poll,
		Batch: s.Batch, Concurrency: s.Concurrency, MaxAttempts: s.MaxAttempts, Shards: s.Shards, Replicas: s.Replicas,
		ReplicaTimeout: cmp.Or(s.ReplicaTimeout, 100*time.Millisecond), MaxDepth: s.MaxDepth, OnFailure: worker.OnFailure(s.OnFailure), DeferFailures: s.DeferFailures,
		Backoff: backoff,
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observe: p.observe,
	}
}

// defaultTTL is short, so that tests need not wait long for a lock to end.
const defaultTTL = 500 * time.Millisecond

// observe passes on what is of interest to the checks.
func (p *child) observe(e worker.Event) {
	r := record{ID: e.ID, Resource: e.Resource}
	if e.Err != nil {
		r.Text = e.Err.Error()
	}
	switch {
	case e.Type == worker.EventLost:
		r.Event = saidLost
	case e.Type == worker.EventTorn:
		r.Event = saidTorn
	case e.Type == worker.EventBuried || e.Type == worker.EventHalted:
		r.Event = saidBuried
	case e.Type == worker.EventEnded && e.Err != nil && !errors.Is(e.Err, pgfence.ErrStale):
		r.Event = saidEnded
	default:
		return
	}
	p.say.say(r)
}

func (p *child) redis() redis.UniversalClient {
	rdb := p.spec.Redis.client(func(o *redis.UniversalOptions) {
		o.PoolSize, o.ReadTimeout = p.spec.PoolSize, p.spec.ReadTimeout
		if len(p.spec.Lose) > 0 {
			o.Dialer = p.loss.dial
		}
	})
	if p.spec.Gate.At != "" || len(p.spec.Lose) > 0 {
		rdb.AddHook(hook{p.gates})
	}
	return rdb
}

func (p *child) postgres(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(p.spec.Postgres)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 16
	cfg.ConnConfig.ConnectTimeout = 2 * time.Second
	cfg.ConnConfig.Tracer = tracer{p.gates}
	for _, l := range p.spec.Lose {
		if l.Step == "commit" {
			cfg.ConnConfig.DialFunc = p.loss.dial
		}
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// obey does what the fleet says, until the fleet is gone.
func (p *child) obey(exit func()) {
	quiet := sync.OnceFunc(func() { close(p.quiet) })
	open := sync.OnceFunc(func() { close(p.gates.open) })
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case sayQuiet:
			quiet()
		case sayOpen:
			open()
		case sayExit:
			quiet()
			open()
			exit()
			return
		}
	}
	os.Exit(4) // nobody is left to judge what this process does
}
