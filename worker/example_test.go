package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/worker"
)

// Credit is a write to an account.
type Credit struct {
	Account string
	Cents   int
	Payment string // names the payment: the same for every try of it
}

// credits is how a Credit is written: its lock is the account's, and a payment
// is one intended write.
var credits = worker.Kind[Credit]{
	Name:           "credit",
	Resource:       func(c Credit) string { return c.Account },
	IdempotencyKey: func(_ context.Context, c Credit) string { return c.Payment },
}

// connect stands for redis.NewClient: it has a Redis of its own.
func connect() (rdb *redis.Client, stop func()) {
	m, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr(), ContextTimeoutEnabled: true})
	return rdb, func() {
		_ = rdb.Close()
		m.Close()
	}
}

// A write runs at once if nobody else writes to its resource. Otherwise it is
// deferred, and run by any process in which Run is running.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{Name: "accounts", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan string, 2)
	writer, err := worker.Wrap(w, func(_ context.Context, c Credit) error {
		done <- fmt.Sprintf("%s has %d cents more", c.Account, c.Cents) // the database comes here
		return nil
	}, credits)
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) }) // in every process that is to run what was deferred

	out, err := writer.Do(ctx, Credit{Account: "alice", Cents: 500, Payment: "p1"})
	fmt.Println("ran:", out.Ran, "deferred:", out.Deferred, "error:", err)
	fmt.Println(<-done)

	// Push never runs the write here.
	id, err := writer.Push(ctx, Credit{Account: "alice", Cents: 700, Payment: "p2"}, 0)
	fmt.Println("pushed:", id, "error:", err)
	fmt.Println(<-done)

	cancel()
	running.Wait()
	// Output:
	// ran: true deferred: false error: <nil>
	// alice has 500 cents more
	// pushed: p2 error: <nil>
	// alice has 700 cents more
}

// The error of Do says what to do next.
func ExampleWriter_Do() {
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := worker.Wrap(w, func(context.Context, Credit) error { return nil }, credits)
	if err != nil {
		log.Fatal(err)
	}
	out, err := writer.Do(context.Background(), Credit{Account: "", Cents: 500, Payment: "p1"})
	switch {
	case err == nil && out.Ran:
		fmt.Println("it took effect")
	case err == nil:
		fmt.Println("it is in the queue, behind", out.Ahead)
	case errors.Is(err, worker.ErrUnknown):
		fmt.Println("it may be in the queue: call again with the same key")
	case errors.Is(err, worker.ErrNotAccepted):
		fmt.Println("nothing has happened")
	default:
		fmt.Println("the function's own error")
	}
	// Output: nothing has happened
}

// A function that takes several writes of one resource at once can fold them
// into one statement. If it could apply only the first of them, it says so.
func ExampleWrapBatch() {
	ctx := context.Background()
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := worker.WrapBatch(w, func(_ context.Context, cs []Credit) error {
		for i, c := range cs {
			if c.Cents < 0 {
				fmt.Println("stopped before", c.Payment)
				err := worker.Permanent(errors.New("a credit cannot be negative"))
				return worker.Applied(i, err)
			}
			fmt.Println("applied", c.Payment)
		}
		return nil
	}, credits)
	if err != nil {
		log.Fatal(err)
	}
	for i, cents := range []int{100, -1, 300} {
		c := Credit{Account: "alice", Cents: cents, Payment: fmt.Sprint("p", i)}
		if _, err := writer.Push(ctx, c, 0); err != nil {
			log.Fatal(err)
		}
	}
	n, err := w.RunOnce(ctx)
	fmt.Println(n, err)
	for letter := range w.Queue().Dead(ctx) {
		fmt.Println("dead:", letter.ID, letter.Cause)
	}
	// Output:
	// applied p0
	// stopped before p1
	// stopped before p1
	// applied p2
	// 2 <nil>
	// dead: p1 a credit cannot be negative
}

// Writes that each replace the whole of what was there need not all be written.
func ExampleLastWins() {
	type Profile struct{ User, Name string }
	ctx := context.Background()
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{Name: "profiles"})
	if err != nil {
		log.Fatal(err)
	}
	profiles, err := worker.WrapBatch(w, worker.LastWins(func(ctx context.Context, p Profile) error {
		in, _ := worker.FromContext(ctx)
		fmt.Printf("%s is now %s, for %d writes\n", p.User, p.Name, len(in.Batch))
		return nil
	}), worker.Kind[Profile]{Name: "profile", Resource: func(p Profile) string { return p.User }})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"Al", "Ali", "Alice"} {
		if _, err := profiles.Push(ctx, Profile{User: "u1", Name: name}, 0); err != nil {
			log.Fatal(err)
		}
	}
	_, err = w.RunOnce(ctx)
	fmt.Println(err)
	// Output:
	// u1 is now Alice, for 3 writes
	// <nil>
}

// A process that has a loop of its own runs one round of what is due in it.
func ExampleWorker_RunOnce() {
	ctx := context.Background()
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := worker.Wrap(w, func(context.Context, Credit) error { return nil }, credits)
	if err != nil {
		log.Fatal(err)
	}
	for _, account := range []string{"alice", "bob"} {
		if _, err := writer.Push(ctx, Credit{Account: account, Payment: "p1"}, 0); err != nil {
			log.Fatal(err)
		}
	}
	for {
		n, err := w.RunOnce(ctx)
		fmt.Println(n, err)
		if n == 0 || err != nil {
			break // and do something else for a while
		}
	}
	// Output:
	// 2 <nil>
	// 0 <nil>
}

// A function can be tested without Redis: it is a function.
func ExampleNewContext() {
	write := func(ctx context.Context, c Credit) error {
		in, ok := worker.FromContext(ctx)
		if !ok {
			return errors.New("not called by a worker")
		}
		fmt.Printf("%s %s, attempt %d: %d cents\n", in.Kind, in.ID, in.Attempt, c.Cents)
		return nil
	}
	ctx := worker.NewContext(context.Background(), worker.Info{Kind: "credit", ID: "p1", Attempt: 2})
	fmt.Println(write(ctx, Credit{Account: "alice", Cents: 500}))
	// Output:
	// credit p1, attempt 2: 500 cents
	// <nil>
}

type traceKey struct{}

// What a write needs of its caller's context travels with it, wherever it runs.
func ExampleConfig_carry() {
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{
		Name: "accounts",
		Carry: func(ctx context.Context) map[string]string {
			trace, _ := ctx.Value(traceKey{}).(string)
			return map[string]string{"trace": trace}
		},
		Restore: func(ctx context.Context, m map[string]string) context.Context {
			return context.WithValue(ctx, traceKey{}, m["trace"])
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := worker.Wrap(w, func(ctx context.Context, c Credit) error {
		fmt.Println(c.Payment, "in trace", ctx.Value(traceKey{}))
		return nil
	}, credits)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.WithValue(context.Background(), traceKey{}, "7f3a")
	if _, err := writer.Push(ctx, Credit{Account: "alice", Payment: "p1"}, 0); err != nil {
		log.Fatal(err)
	}
	_, err = w.RunOnce(context.Background())
	fmt.Println(err)
	// Output:
	// p1 in trace 7f3a
	// <nil>
}

// Observe is where metrics are counted. Resources are of unbounded number, and
// often personal: the kind is a better label.
func ExampleConfig_observe() {
	ctx := context.Background()
	rdb, stop := connect()
	defer stop()
	var mu sync.Mutex // Observe is called by several goroutines
	count := map[string]int{}
	w, err := worker.New(rdb, worker.Config{
		Name: "accounts",
		Observe: func(e worker.Event) {
			mu.Lock()
			defer mu.Unlock()
			count[e.Kind+" "+string(e.Type)]++
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := worker.Wrap(w, func(context.Context, Credit) error { return nil }, credits)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := writer.Do(ctx, Credit{Account: "alice", Payment: "p1"}); err != nil {
		log.Fatal(err)
	}
	if _, err := writer.Push(ctx, Credit{Account: "alice", Payment: "p2"}, 0); err != nil {
		log.Fatal(err)
	}
	if _, err := w.RunOnce(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(count)
	// Output: map[credit admitted:1 credit deferred:1 credit ended:2 credit started:2]
}

// A function says with its error what is to become of the write.
func ExamplePermanent() {
	errClosed := errors.New("the account is closed")
	errLimited := errors.New("too many requests")
	write := func(_ context.Context, c Credit) error {
		switch c.Account {
		case "closed":
			return worker.Permanent(errClosed) // given up at once
		case "limited":
			return worker.RetryAfter(errLimited, time.Minute) // not before
		}
		return nil
	}
	err := write(context.Background(), Credit{Account: "closed"})
	fmt.Println(err, worker.IsPermanent(err), errors.Is(err, errClosed))
	err = write(context.Background(), Credit{Account: "limited"})
	fmt.Println(err, worker.IsPermanent(err), errors.Is(err, errLimited))
	// Output:
	// the account is closed true true
	// too many requests false true
}

// With DeferFailures a write that fails in Do is tried again by Run, before all
// that came after it.
func ExampleConfig_deferFailures() {
	ctx := context.Background()
	rdb, stop := connect()
	defer stop()
	w, err := worker.New(rdb, worker.Config{
		Name:          "accounts",
		DeferFailures: true,
		Backoff:       func(int) time.Duration { return 0 },
		Logger:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := worker.Wrap(w, func(ctx context.Context, c Credit) error {
		if in, _ := worker.FromContext(ctx); in.Attempt == 1 {
			return errors.New("the database is restarting")
		}
		fmt.Println(c.Payment, "took effect")
		return nil
	}, credits)
	if err != nil {
		log.Fatal(err)
	}
	out, err := writer.Do(ctx, Credit{Account: "alice", Cents: 500, Payment: "p1"})
	fmt.Println("deferred:", out.Deferred, "because it", out.Why, err)
	n, err := w.RunOnce(ctx)
	fmt.Println(n, err)
	// Output:
	// deferred: true because it failed <nil>
	// p1 took effect
	// 1 <nil>
}
