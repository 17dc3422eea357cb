package pgfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/deferlock/deferlock/worker"
)

// The savepoint behind which a joined transaction is worked in. It is not
// released after a success, which would cost a round trip and gain nothing.
const (
	setSavepoint = "savepoint deferlock"
	backToSaved  = "rollback to savepoint deferlock; release savepoint deferlock"
)

// errEnded is for a function that took the commit upon itself.
var errEnded = errors.New("pgfence: the function has ended the transaction")

// transaction is one that was begun or joined.
type transaction struct {
	pgx.Tx
	joined bool

	// begun says that there is something to go back to.
	begun bool
}

// attempt is one fenced transaction from its beginning to its end.
func (f *fencing) attempt(ctx context.Context, db DB) error {
	t, fresh, err := f.open(ctx, db)
	ended := false
	defer func() { // also when the function panics, or ends its goroutine
		if !ended {
			t.undo(ctx)
		}
	}()
	if err != nil || !slices.Contains(fresh, true) {
		return err
	}
	if err := f.run(t.Tx, fresh); err != nil {
		return err
	}
	switch t.Conn().PgConn().TxStatus() {
	case 'I':
		return errEnded
	case 'E':
		return fmt.Errorf("pgfence: the function returned nil after a statement had failed: %w", pgx.ErrTxCommitRollback)
	}
	if t.joined {
		ended = true
		return nil
	}
	err = t.Commit(ctx)
	ended = true
	return committed(err)
}

// open begins or joins a transaction, sets its limits, checks the fence and
// records the IDs, in one round trip. It is up to the caller to undo it.
func (f *fencing) open(ctx context.Context, db DB) (*transaction, []bool, error) {
	t := &transaction{}
	b := &pgx.Batch{}
	if t.Tx, t.joined = db.(pgx.Tx); t.joined {
		b.Queue(setSavepoint)
	} else {
		b.BeginTx(pgx.TxOptions{})
	}
	if f.resource != "" {
		b.Queue(fenceSQL, f.name, f.resource, f.fence, f.lockTimeout, f.idleTimeout)
	} else {
		b.Queue(limitsSQL, f.lockTimeout, f.idleTimeout)
	}
	if len(f.ids) == 1 {
		b.Queue(recordSQL, f.name, f.resource, f.ids[0], f.hashes[0])
	} else {
		b.Queue(recordBatchSQL, f.name, f.resource, f.ids, f.hashes)
	}
	results := db.SendBatch(ctx, b)
	if !t.joined {
		t.Tx = results.Tx()
	}
	passed, recorded, err := f.read(results, t)
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return t, nil, t.unopened(fmt.Errorf("pgfence: begin: %w", err))
	case !passed:
		return t, nil, f.late(ctx, t)
	}
	fresh := f.match(recorded)
	if slices.Contains(fresh, false) {
		return t, fresh, f.compare(ctx, t, fresh)
	}
	return t, fresh, nil
}

// unopened marks what went wrong on the way to the server, before the function
// was called: that is never the write's fault.
func (t *transaction) unopened(err error) error {
	if t.joined || stateOf(err) != "" {
		return err
	}
	return worker.Busy(err)
}

// read takes in the results of what open sent: whether the fence was passed and
// which IDs were recorded.
func (f *fencing) read(results pgx.BatchResults, t *transaction) (passed bool, recorded []string, err error) {
	if _, err := results.Exec(); err != nil {
		return false, nil, err
	}
	t.begun = true
	tag, err := results.Exec()
	if err != nil {
		return false, nil, err
	}
	passed = f.resource == "" || tag.RowsAffected() == 1
	if len(f.ids) == 1 {
		tag, err = results.Exec()
		return passed, f.ids[:tag.RowsAffected()], err
	}
	rows, err := results.Query()
	if err != nil {
		return false, nil, err
	}
	recorded, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return passed, recorded, err
}

// match tells of each ID whether it was recorded just now. One that is there
// twice is fresh once.
func (f *fencing) match(recorded []string) []bool {
	fresh := make([]bool, len(f.ids))
	if len(recorded) == len(f.ids) {
		for i := range fresh {
			fresh[i] = true
		}
		return fresh
	}
	left := make(map[string]bool, len(recorded))
	for _, id := range recorded {
		left[id] = true
	}
	for i, id := range f.ids {
		fresh[i] = left[id]
		delete(left, id)
	}
	return fresh
}

// late is why the fence was not passed.
func (f *fencing) late(ctx context.Context, t *transaction) error {
	var seen int64
	if err := t.QueryRow(ctx, seenSQL, f.name, f.resource).Scan(&seen); err != nil {
		return fmt.Errorf("pgfence: read the fence: %w", err)
	}
	return &behind{seen}
}

// compare makes sure that what is to be skipped is what took effect.
func (f *fencing) compare(ctx context.Context, t *transaction, fresh []bool) error {
	rows, err := t.Query(ctx, recordedSQL, f.name, f.resource, f.ids)
	if err != nil {
		return fmt.Errorf("pgfence: read what took effect: %w", err)
	}
	stored := make(map[string][]byte)
	var id string
	var hash []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &hash}, func() error {
		stored[id] = bytes.Clone(hash)
		return nil
	})
	if err != nil {
		return fmt.Errorf("pgfence: read what took effect: %w", err)
	}
	for i, id := range f.ids {
		// One that is not there any more was pruned since: it did take effect.
		if was, ok := stored[id]; ok && !fresh[i] && !bytes.Equal(was, f.hashes[i]) {
			return worker.Permanent(fmt.Errorf("%w: %q", ErrMismatch, id))
		}
	}
	return nil
}

// undoing bounds how long a transaction is taken back for when its context has
// ended.
const undoing = 3 * time.Second

// undo takes everything back. What cannot be taken back must not be committed:
// the connection is closed then.
func (t *transaction) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	if !t.joined {
		_ = t.Rollback(ctx) // it closes the connection if it fails
		return
	}
	if !t.begun {
		return
	}
	if _, err := t.Exec(ctx, backToSaved); err != nil {
		_ = t.Conn().Close(ctx)
	}
}
