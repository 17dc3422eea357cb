// Quickstart is the smallest whole program: one kind of write, submitted and
// run in one process. It needs a Redis at localhost:6379.
package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/worker"
)

// Credit is a write to an account.
type Credit struct {
	Account string
	Cents   int64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	w, err := worker.New(rdb, worker.Config{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	credits, err := worker.Wrap(w, writeCredit, worker.Kind[Credit]{
		Name:     "credit",
		Resource: func(c Credit) string { return c.Account },
	})
	if err != nil {
		log.Fatal(err)
	}

	// Anywhere, in any process: run it now, or defer it.
	go func() {
		for i := range int64(10) {
			go func() {
				out, err := credits.Do(ctx, Credit{Account: "alice", Cents: i})
				fmt.Printf("credit of %d: ran %v, deferred %v, error %v\n", i, out.Ran, out.Deferred, err)
			}()
		}
	}()

	// In at least one process: run what was deferred, until Ctrl-C.
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// writeCredit is your function: one write to the database.
func writeCredit(ctx context.Context, c Credit) error {
	in, _ := worker.FromContext(ctx)
	fmt.Printf("  writing %d to %s, fence %d\n", c.Cents, c.Account, in.Fence)
	return nil
}
