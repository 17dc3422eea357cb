package fleet

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/lock"
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

// pgfence's own statements.
var fenceSQL, seenSQL, recordSQL = pgfence.SQL().Fence, pgfence.SQL().Seen, pgfence.SQL().Record

// The ways to break a promise.
const (
	PlantNoFence  = "no fence"  // neither fence nor ID: what a worker without pgfence does
	PlantNoID     = "no id"     // the fence alone: a commit is repeated
	PlantAckFirst = "ack first" // the write is acknowledged before it is committed
	PlantNaive    = "naive"     // the plain recipe: lock, push on conflict, pop
	PlantRelease  = "release"   // the plain recipe, whose locks are released without their token
	PlantStrict   = "strict"    // pgfence, but a fence must be greater than the last: < for <=
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
	given := ctx
	defer context.AfterFunc(given, func() {
		if errors.Is(context.Cause(given), lock.ErrLost) {
			f.say.say(record{Event: saidTold, ID: in.ID, Resource: in.Resource})
		}
	})()
	if f.spec.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	err := f.write(ctx, ws)
	if errors.Is(err, pgfence.ErrStale) {
		f.stale(context.WithoutCancel(ctx), in)
	}
	return err
}

// stale says that a write was refused by the fence, and whether it should have
// been: only who is late, and so has a smaller fence than the last who wrote.
func (f *function) stale(ctx context.Context, in worker.Info) {
	f.say.say(record{Event: saidStale, ID: in.ID, Resource: in.Resource})
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var seen int64
	if err := f.db.QueryRow(ctx, seenSQL, in.Name, in.Resource).Scan(&seen); err != nil {
		return // the database is in trouble just now
	}
	if in.Fence >= seen {
		f.say.say(record{Event: saidRefused, ID: in.ID, Resource: in.Resource, Text: fmt.Sprintf("%d, the last was %d", in.Fence, seen)})
	}
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
			if err := f.fence(ctx, tx, in, fenceSQL); err != nil {
				return err
			}
			return body(tx, ws)
		})
	case f.spec.Plant == PlantStrict:
		return f.plain(ctx, func(tx pgx.Tx) error { return f.strict(ctx, tx, in, ws, body) })
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

// fence refuses whoever is late, by pgfence's statement or one like it.
func (f *function) fence(ctx context.Context, tx pgx.Tx, in worker.Info, sql string) error {
	tag, err := tx.Exec(ctx, sql, in.Name, in.Resource, in.Fence, defaultTTL.Milliseconds(), defaultTTL.Milliseconds())
	if err == nil && tag.RowsAffected() == 0 {
		err = pgfence.ErrStale
	}
	return err
}

// strict is pgfence's transaction with the planted fault: a holder cannot write
// twice under one fence.
func (f *function) strict(ctx context.Context, tx pgx.Tx, in worker.Info, ws []Write, body func(pgx.Tx, []Write) error) error {
	if err := f.fence(ctx, tx, in, strings.Replace(fenceSQL, "f.fence <= EXCLUDED.fence", "f.fence < EXCLUDED.fence", 1)); err != nil {
		return err
	}
	hash := in.PayloadHash()
	tag, err := tx.Exec(ctx, recordSQL, in.Name, in.Resource, in.ID, hash[:])
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	return body(tx, ws)
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
