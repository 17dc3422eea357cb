// Package pgfence makes a write of package worker take effect exactly once in
// Postgres.
//
//	worker.Wrap(w, func(ctx context.Context, c Credit) error {
//		return pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", c.Amount, c.Account)
//			return err
//		})
//	}, kind)
//
// In the transaction in which the function writes, and before it is called,
//
//   - the fence is checked: a holder that was paused until another one has
//     written gets [ErrStale], and nothing is written;
//   - the write's ID is recorded: a write that took effect before is skipped,
//     and counts as done.
//
// Whether a write is fresh is asked of its ID and of nothing else, so that a
// Redis that has lost its memory cannot make a fresh write look like an old one.
// If it has lost its clock too, fences begin below what the database has seen.
// A holder that is refused therefore asks Redis whether the lock is still its
// own; if it is, it lifts Redis's clock to the database's number and goes on.
//
// # The transaction
//
// Given a pool or a connection, Write begins the transaction, with everything
// above in the same round trip, and commits it: as many round trips as the
// transaction would have had without pgfence. Its isolation level is the
// connection's default (default_transaction_isolation); READ COMMITTED is
// enough, and stricter levels work. After a serialization failure or a deadlock
// it begins anew, so the function may be called several times: what it does
// outside of tx it must be able to repeat.
//
// Given a [pgx.Tx], Write joins it. It works behind a savepoint, to which it
// goes back on every error and for a write that is skipped, so that the caller's
// transaction stands then as it did before. It neither commits nor tries again:
// the write has taken effect when the caller's commit succeeds, and the caller
// returns the error of that commit to the worker. What the caller does outside
// of the function is neither fenced nor skipped; what it has read before the
// call may be out of date; and the limits below hold for the rest of its
// transaction.
//
// A holder that is stopped inside the transaction must not block its lane:
// lock_timeout is set to a quarter and idle_in_transaction_session_timeout to
// half of [worker.Info.LockTTL], for this transaction only, unless the session
// has stricter ones. A function that does something else for longer than that
// between two statements loses its transaction each time it is tried. What no
// limit covers is one long statement: it ends by itself, or is stopped by a
// statement_timeout of the session's.
//
// # What a commit is worth
//
// A write is acknowledged, and gone from Redis, when Postgres has said that it is
// committed. With synchronous_commit set to off Postgres says so before its log
// is on the disk, and forgets the last moments (three times wal_writer_delay at
// the most) when it crashes: their effects are lost, nothing does them again, and
// nobody is told. What is left is whole: each write is there once and in its
// order, and its ID is known if and only if its effect is there. [Setup] has the
// server warn of it. Where a standby may take over, what it has not got is lost
// in the same way, unless synchronous_standby_names has it waited for.
//
// # Errors
//
// The function's own error comes back as it is. Errors that are not the write's
// fault are marked with [worker.Busy], so that they do not use up its attempts:
// [ErrStale], a lock_timeout, a serialization failure or deadlock that outlasted
// the retries, no connection to be had or one that broke before the function was
// called, a server that shuts down or cannot write, an
// idle_in_transaction_session_timeout, and a commit whose reply was lost. Whether that commit took effect is found out when the write is delivered
// again.
//
// # The tables
//
// deferlock_applied has a row for each write, about 250 bytes with its indexes,
// until [Prune] takes it away. deferlock_fence has a row for each resource ever
// written to, and nothing takes it away: without its row a resource has no
// fence, and a holder that was paused before would not be refused. Rows may be
// deleted by hand if no process that worked on their resources then is still
// running, asleep machines included. A fence is a time in microseconds, so
//
//	DELETE FROM deferlock_fence WHERE fence < extract(epoch FROM now() - interval '90 days') * 1e6
//
// forgets the resources nobody has written to for 90 days. A write without a
// resource has no row there.
//
// The tables are made by [Setup], or by the statements that [SQL] returns. They
// are found by the search_path. The database's encoding should be UTF8: in
// another one, resources and IDs that it cannot represent are errors.
package pgfence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/deferlock/deferlock/worker"
)

// DB is a [github.com/jackc/pgx/v5/pgxpool.Pool], a [pgx.Conn], or a [pgx.Tx] to
// be joined.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

var (
	// ErrStale is returned when a later holder of the resource has written:
	// the lock is not this write's any more. Nothing was written.
	ErrStale = errors.New("pgfence: a later holder has written")

	// ErrMismatch is returned for a write whose ID took effect with another
	// kind or payload. Nothing was written. It is permanent: the ID belongs to
	// the other one. (A codec that makes other bytes of the same value, because
	// it encrypts or the type has changed, looks the same.)
	ErrMismatch = errors.New("pgfence: the ID took effect with another payload")

	// ErrSecond is returned for a second fenced write in one call of a
	// function. Its ID would be the first one's, and so it would be skipped when
	// the write is delivered again. Nothing was written by the second.
	ErrSecond = errors.New("pgfence: one call of a function can have one fenced write")

	// ErrOutside is returned when the context is not that of a function of
	// package worker. See [worker.NewContext] for tests.
	ErrOutside = errors.New("pgfence: not in a function of package worker")
)

// Write runs fn in a transaction, unless the write that the worker's function is
// doing has taken effect before. With nil the write has taken effect, now or
// before; with an error nothing is written, or, if the commit's reply was lost,
// it is not known and the next delivery finds out. fn must not end the
// transaction.
//
// In a function made by [worker.LastWins] all writes of the batch are recorded,
// and fn is run unless the newest has taken effect before. Other batches are for
// [WriteBatch].
func Write(ctx context.Context, db DB, fn func(pgx.Tx) error) error {
	in, ok := worker.FromContext(ctx)
	if !ok {
		return ErrOutside
	}
	ins := []worker.Info{in}
	if in.Coalesced {
		ins = in.Batch
	} else if in.Batch != nil {
		return errors.New("pgfence: Write in a function for batches: use WriteBatch")
	}
	return fenced(ctx, db, in, ins, func(tx pgx.Tx, fresh []bool) error {
		if !fresh[len(fresh)-1] {
			return nil // what it would write has been replaced since
		}
		return fn(tx)
	})
}

// WriteBatch is Write for a function given to [worker.WrapBatch]; vs are all its
// values. fn runs in one transaction and gets those that have not taken effect
// before, in their order; if there are none it is not called.
func WriteBatch[T any](ctx context.Context, db DB, vs []T, fn func(tx pgx.Tx, fresh []T) error) error {
	in, ok := worker.FromContext(ctx)
	if !ok {
		return ErrOutside
	}
	ins := in.Batch
	if ins == nil {
		ins = []worker.Info{in}
	}
	if in.Coalesced {
		return errors.New("pgfence: WriteBatch in a function of LastWins: use Write")
	}
	if len(ins) != len(vs) {
		return fmt.Errorf("pgfence: WriteBatch with %d values in a function that was given %d", len(vs), len(ins))
	}
	return fenced(ctx, db, in, ins, func(tx pgx.Tx, fresh []bool) error {
		todo := make([]T, 0, len(vs))
		for i, v := range vs {
			if fresh[i] {
				todo = append(todo, v)
			}
		}
		return fn(tx, todo)
	})
}

// fenced makes sure that the effect is the only one of this call of a function.
func fenced(ctx context.Context, db DB, in worker.Info, ins []worker.Info, run func(pgx.Tx, []bool) error) error {
	f, err := newFencing(in, ins, run)
	if err != nil {
		return err
	}
	end, ok := worker.BeginOnce(ctx)
	if !ok {
		return ErrSecond
	}
	took := false
	defer func() { end(took) }()
	err = f.do(ctx, db)
	took = err == nil
	return err
}
