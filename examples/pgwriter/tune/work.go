package tune

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/worker/pgfence"
)

var (
	//go:embed schema.sql
	schemaSource string
	//go:embed write.sql
	writeSource string
	//go:embed effects.sql
	effectsSource string
)

// work is what the function given to WrapBatch does.
type work interface {
	// Transact does writes of one account in one transaction.
	Transact(ctx context.Context, ws []Write) error

	// Effects tells what took effect since it was last asked, and forgets it.
	Effects(ctx context.Context) (Effects, error)
}

// Effects is what took effect.
type Effects struct {
	Writes       int // as often as each of them did
	Different    int
	Transactions int
}

// ledger is the work of real transactions.
type ledger struct {
	db     *pgxpool.Pool
	schema string
}

// openLedger makes a schema of that name, with its tables and pgfence's.
func openLedger(ctx context.Context, url, schema string, l Load) (*ledger, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(l.Connections)
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	g := &ledger{db: db, schema: schema}
	if err := g.create(ctx, l.Resources); err != nil {
		return nil, errors.Join(err, g.close(ctx))
	}
	return g, nil
}

func (g *ledger) create(ctx context.Context, accounts int) error {
	if _, err := g.db.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{g.schema}.Sanitize()); err != nil {
		return fmt.Errorf("make a schema: %w", err)
	}
	if _, err := g.db.Exec(ctx, schemaSource); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if err := pgfence.Setup(ctx, g.db); err != nil {
		return err
	}
	row := func(k int) ([]any, error) { return []any{account(k)}, nil }
	_, err := g.db.CopyFrom(ctx, pgx.Identifier{"accounts"}, []string{"account"}, pgx.CopyFromSlice(accounts, row))
	if err != nil {
		return fmt.Errorf("open the accounts: %w", err)
	}
	return nil
}

// close removes the schema, also when ctx has ended.
func (g *ledger) close(ctx context.Context) error {
	defer g.db.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, err := g.db.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{g.schema}.Sanitize()+" CASCADE")
	if err != nil {
		return fmt.Errorf("the schema %s could not be removed: %w", g.schema, err)
	}
	return nil
}

func (g *ledger) Transact(ctx context.Context, ws []Write) error {
	return pgfence.WriteBatch(ctx, g.db, ws, func(tx pgx.Tx, fresh []Write) error {
		numbers, amounts := make([]int64, len(fresh)), make([]int64, len(fresh))
		for i, w := range fresh {
			numbers[i], amounts[i] = int64(w.Seq), w.Amount
		}
		_, err := tx.Exec(ctx, writeSource, fresh[0].Account, numbers, amounts)
		return err
	})
}

func (g *ledger) Effects(ctx context.Context) (Effects, error) {
	var e Effects
	err := g.db.QueryRow(ctx, effectsSource).Scan(&e.Writes, &e.Different, &e.Transactions)
	if err == nil {
		_, err = g.db.Exec(ctx, "TRUNCATE entries")
	}
	if err != nil {
		return e, fmt.Errorf("count what took effect: %w", err)
	}
	return e, nil
}

// stopwatch is the work of transactions that only take their time.
type stopwatch struct {
	load  Load
	slots chan struct{}

	// mu guards all below.
	mu   sync.Mutex
	seen map[int]int // by the number of the write: how often it took effect
	done int         // transactions
}

func newStopwatch(l Load) *stopwatch {
	return &stopwatch{load: l, slots: make(chan struct{}, l.Connections), seen: map[int]int{}}
}

func (s *stopwatch) Transact(ctx context.Context, ws []Write) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.slots }()
	if err := pause(ctx, s.load.Work+time.Duration(len(ws))*s.load.Each); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	for _, w := range ws {
		s.seen[w.Seq]++
	}
	return nil
}

func (s *stopwatch) Effects(context.Context) (Effects, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := Effects{Different: len(s.seen), Transactions: s.done}
	for _, n := range s.seen {
		e.Writes += n
	}
	s.seen, s.done = map[int]int{}, 0
	return e, nil
}

// pause waits for d, or fails when ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
