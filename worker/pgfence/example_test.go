package pgfence_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// Credit is money for an account.
type Credit struct {
	Key     string // names this credit, in the request and in every repetition of it
	Account string
	Amount  int64
}

func Example() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	if err := pgfence.Setup(ctx, pool); err != nil {
		log.Fatal(err)
	}

	w, err := worker.New(rdb, worker.Config{Name: "bank"})
	if err != nil {
		log.Fatal(err)
	}
	credits, err := worker.Wrap(w, func(ctx context.Context, c Credit) error {
		return pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", c.Amount, c.Account)
			return err
		})
	}, worker.Kind[Credit]{
		Name:           "credit",
		Resource:       func(c Credit) string { return c.Account },
		IdempotencyKey: func(_ context.Context, c Credit) string { return c.Key },
	})
	if err != nil {
		log.Fatal(err)
	}

	// However often this is called, and whatever crashes meanwhile, alice gets
	// 100 once.
	if _, err := credits.Do(ctx, Credit{Key: "order-17", Account: "alice", Amount: 100}); err != nil {
		log.Fatal(err)
	}
}

// Several writes of one resource become one transaction.
func ExampleWriteBatch() {
	var pool *pgxpool.Pool
	write := func(ctx context.Context, cs []Credit) error {
		return pgfence.WriteBatch(ctx, pool, cs, func(tx pgx.Tx, fresh []Credit) error {
			var sum int64
			for _, c := range fresh {
				sum += c.Amount
			}
			_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", sum, fresh[0].Account)
			return err
		})
	}
	var w *worker.Worker
	if _, err := worker.WrapBatch(w, write, worker.Kind[Credit]{
		Name:     "credit",
		Resource: func(c Credit) string { return c.Account },
	}); err != nil {
		log.Print(err)
	}
}

// A fenced write in a transaction that the function begins itself, because
// something else belongs in it, or because it needs another isolation level.
func ExampleWrite_joined() {
	var pool *pgxpool.Pool
	_ = func(ctx context.Context, c Credit) error {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			return pgfence.Write(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", c.Amount, c.Account)
				return err
			})
		})
		// Nobody tries it again but the worker.
		return err
	}
}

// A submitter that lost track of a write can ask whether it took effect.
func ExampleAppliedTo() {
	ctx := context.Background()
	var pool *pgxpool.Pool
	done, err := pgfence.AppliedTo(ctx, pool, "bank", "alice", "order-17")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("credited:", done)
}

// Old IDs are forgotten once a day.
func ExamplePrune() {
	ctx := context.Background()
	var pool *pgxpool.Pool
	for day := time.NewTicker(24 * time.Hour); ; {
		select {
		case <-ctx.Done():
			return
		case <-day.C:
			if n, err := pgfence.Prune(ctx, pool, pgfence.DefaultKeep); err != nil {
				log.Printf("pruned %d, then: %v", n, err)
			}
		}
	}
}

// The statements, for those who run their migrations themselves.
func ExampleSQL() {
	fmt.Println(pgfence.SQL().Schema)
}
