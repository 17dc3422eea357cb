package fleet

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

var (
	//go:embed effects.sql
	effectsSQL string
	//go:embed enter.sql
	enterSQL string
	//go:embed leave.sql
	leaveSQL string
)

// The ways to break a promise.
const (
	PlantNoFence  = "no fence"  // neither fence nor ID: what a worker without pgfence does
	PlantNoID     = "no id"     // the fence alone: a commit is repeated
	PlantAckFirst = "ack first" // the write is acknowledged before it is committed
	PlantNaive    = "naive"     // the plain recipe: lock, push on conflict, pop
)

// Write is what is submitted.
type Write struct {
	Resource string
	ID       string
	Payload  string
	Do       string `json:",omitempty"` // how to misbehave when it is called first
}

// function is what a process does with a write.
type function struct {
	spec  Spec
	db    *pgxpool.Pool
	say   *sayer
	gates *gates
	told  sync.Map // the IDs for which it has misbehaved: once is enough
}

func (f *function) one(ctx context.Context, w Write) error { return f.many(ctx, []Write{w}) }

func (f *function) many(ctx context.Context, ws []Write) error {
	in, _ := worker.FromContext(ctx)
	if in.Attempt > 1 {
		f.say.say(record{Event: saidAgain, ID: in.ID, Resource: in.Resource})
	}
	if err := f.misbehave(ctx, in, ws); err != nil {
		return err
	}
	if f.spec.Plant == PlantAckFirst {
		go func() { _ = f.write(context.WithoutCancel(ctx), ws) }()
		return nil
	}
	if f.spec.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	err := f.write(ctx, ws)
	if errors.Is(err, pgfence.ErrStale) {
		f.say.say(record{Event: saidStale, ID: in.ID, Resource: in.Resource})
	}
	return err
}

// write takes the time that it is to take, and writes. While it takes its time it
// does not look at its context: what it does then is what the fence is there for.
func (f *function) write(ctx context.Context, ws []Write) error {
	rest(nil, f.spec.Think-f.inside())
	body := func(tx pgx.Tx, fresh []Write) error {
		if len(fresh) == 0 {
			return nil
		}
		return f.effect(ctx, tx, fresh)
	}
	in, _ := worker.FromContext(ctx)
	switch {
	case f.spec.Plant == PlantNoID:
		return f.plain(ctx, func(tx pgx.Tx) error {
			const fence = `INSERT INTO deferlock_fence AS f (name, resource, fence) VALUES ($1, $2, $3)
				ON CONFLICT (name, resource) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence`
			tag, err := tx.Exec(ctx, fence, in.Name, in.Resource, in.Fence)
			if err == nil && tag.RowsAffected() == 0 {
				err = worker.Busy(pgfence.ErrStale)
			}
			if err != nil {
				return err
			}
			return body(tx, ws)
		})
	case f.spec.Plant != "":
		return f.plain(ctx, func(tx pgx.Tx) error { return body(tx, ws) })
	case in.Batch != nil:
		return pgfence.WriteBatch(ctx, f.db, ws, body)
	}
	return pgfence.Write(ctx, f.db, func(tx pgx.Tx) error { return body(tx, ws) })
}

// plain is a transaction without pgfence. Its errors do not count as attempts,
// as pgfence's do not.
func (f *function) plain(ctx context.Context, body func(pgx.Tx) error) error {
	return worker.Busy(pgx.BeginFunc(ctx, f.db, body))
}

func (f *function) effect(ctx context.Context, tx pgx.Tx, ws []Write) error {
	in, _ := worker.FromContext(ctx)
	var entered time.Time
	var fence int64
	if err := tx.QueryRow(ctx, enterSQL, in.Name, in.Resource, in.Fence).Scan(&entered, &fence); err != nil {
		return err
	}
	f.gates.pass("before write")
	rest(nil, f.inside())
	b := &pgx.Batch{}
	for _, w := range ws {
		b.Queue(leaveSQL, w.Resource, w.ID, w.Payload, f.spec.Process, fence, entered)
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	f.gates.pass("after write")
	return nil
}

// inside is how much of the time that a write takes is spent in its transaction:
// a half, but no longer than a transaction may be idle.
func (f *function) inside() time.Duration { return min(f.spec.Think/2, 20*time.Millisecond) }

// misbehave does what a write asks for when it is first called. Poison never
// succeeds.
func (f *function) misbehave(ctx context.Context, in worker.Info, ws []Write) error {
	for _, w := range ws {
		if w.Do == "" {
			continue
		}
		if _, before := f.told.LoadOrStore(w.ID, true); (before || in.Attempt > 1) && w.Do != "poison" {
			continue
		}
		switch w.Do {
		case "fail", "poison":
			return fmt.Errorf("%s was told to fail", w.ID)
		case "panic":
			panic(w.ID + " was told to")
		case "goexit":
			runtime.Goexit()
		case "stall":
			<-ctx.Done()
			return context.Cause(ctx)
		case "block":
			rest(nil, 10*defaultTTL)
		}
	}
	return nil
}

// setup makes the tables of a fleet.
func setup(ctx context.Context, url string) error {
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := pgfence.Setup(ctx, db); err != nil {
		return err
	}
	_, err = db.Exec(ctx, effectsSQL)
	return err
}
