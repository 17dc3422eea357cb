package pgfence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed schema.sql
	schemaSQL string
	//go:embed limits.sql
	limitsSQL string
	//go:embed fence.sql
	fenceSQL string
	//go:embed seen.sql
	seenSQL string
	//go:embed record.sql
	recordSQL string
	//go:embed record_batch.sql
	recordBatchSQL string
	//go:embed recorded.sql
	recordedSQL string
	//go:embed applied.sql
	appliedSQL string
	//go:embed applied_to.sql
	appliedToSQL string
	//go:embed asynchronous.sql
	asynchronousSQL string
	//go:embed present.sql
	presentSQL string
	//go:embed alone.sql
	aloneSQL string
	//go:embed prune.sql
	pruneSQL string
)

// Statements are the SQL of this package, for those who run their migrations
// themselves and for users of other drivers. Each begins with a comment that
// says what its parameters and its result are. A fenced transaction is
//
//  1. BEGIN
//  2. Fence, or for a write without a resource Limits. If Fence has affected no
//     row: ROLLBACK, the holder is stale. Seen tells what the database has seen.
//  3. Record, or RecordBatch for several. What is not recorded has taken effect
//     before: compare its hash by Recorded, and leave it out. If nothing is
//     left: ROLLBACK.
//  4. the write itself
//  5. COMMIT
//
// where 1 to 3 can be sent together. Fence must be a statement of its own and
// come before everything the transaction reads or writes.
type Statements struct {
	Schema                        string
	Fence, Limits, Seen           string
	Record, RecordBatch, Recorded string
}

// SQL returns the statements this package itself uses.
func SQL() Statements {
	return Statements{
		Schema: schemaSQL,
		Fence:  fenceSQL, Limits: limitsSQL, Seen: seenSQL,
		Record: recordSQL, RecordBatch: recordBatchSQL, Recorded: recordedSQL,
	}
}

// Setup creates the tables if they are not there. Any number of processes may
// call it whenever they start: once the tables are there it takes no lock and
// needs no right to create.
//
// If synchronous_commit is off on the connection, it has the server raise a
// warning, which is in the server's log and comes to the connection's
// [github.com/jackc/pgx/v5/pgconn.NoticeHandler]; see the package's text on what
// a commit is worth.
func Setup(ctx context.Context, db DB) error {
	var present bool
	var commit string
	if err := db.QueryRow(ctx, presentSQL).Scan(&present, &commit); err != nil {
		return fmt.Errorf("pgfence: look for the tables: %w", err)
	}
	if commit == "off" {
		if err := warn(ctx, db); err != nil {
			return fmt.Errorf("pgfence: warn that synchronous_commit is off: %w", err)
		}
	}
	if present {
		return nil
	}
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, aloneSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, schemaSQL)
		return err
	})
	if err != nil {
		return fmt.Errorf("pgfence: create the tables: %w", err)
	}
	return nil
}

// warn is for what does not keep anything from working.
func warn(ctx context.Context, db DB) error {
	b := &pgx.Batch{}
	b.Queue(asynchronousSQL)
	return db.SendBatch(ctx, b).Close()
}

// Applied tells whether a write of the worker called name with this ID has taken
// effect, on whatever resource. An ID is unique on its resource only: where
// resources share IDs, ask [AppliedTo].
func Applied(ctx context.Context, db DB, name, id string) (bool, error) {
	return ask(ctx, db, appliedSQL, name, id)
}

// AppliedTo tells whether the write with this ID has taken effect on the
// resource, "" for a write that stands alone.
func AppliedTo(ctx context.Context, db DB, name, resource, id string) (bool, error) {
	return ask(ctx, db, appliedToSQL, name, resource, id)
}

func ask(ctx context.Context, db DB, sql string, args ...any) (yes bool, err error) {
	if err := db.QueryRow(ctx, sql, args...).Scan(&yes); err != nil {
		return false, fmt.Errorf("pgfence: ask what took effect: %w", err)
	}
	return yes, nil
}

// DefaultKeep is how long [Prune] keeps an ID by default.
const DefaultKeep = 30 * 24 * time.Hour

const (
	leastKeep  = time.Hour
	pruneBatch = 1000
)

// Prune forgets the IDs of writes that took effect longer ago than olderThan,
// and returns how many. 0 is [DefaultKeep]; less than an hour is refused. A
// write whose ID is forgotten takes effect again if it is delivered again, so
// olderThan must be longer than a write can wait for its acknowledgement (for as
// long as no process runs the queue), than it can be a dead letter and still be
// revived, and than submitters repeat a Do with the same key.
//
// It deletes 1000 rows at a time, each time in a transaction of its own, and
// passes over what another Prune has in hand; so it can run at any time, say
// once a day, and may be stopped. Given a [pgx.Tx] it would hold its locks until
// the end of that, and refuses.
func Prune(ctx context.Context, db DB, olderThan time.Duration) (int64, error) {
	if olderThan == 0 {
		olderThan = DefaultKeep
	}
	if olderThan < leastKeep {
		return 0, fmt.Errorf("pgfence: Prune's olderThan is %v: want %v or more", olderThan, leastKeep)
	}
	if _, ok := db.(pgx.Tx); ok {
		return 0, errors.New("pgfence: Prune in a transaction would hold its locks until the end of that")
	}
	var total int64
	var from *time.Time
	for {
		var n int64
		err := db.QueryRow(ctx, pruneSQL, olderThan.Seconds(), from, pruneBatch).Scan(&n, &from)
		if err != nil {
			return total, fmt.Errorf("pgfence: prune: %w", err)
		}
		total += n
		if n < pruneBatch {
			return total, nil
		}
	}
}
