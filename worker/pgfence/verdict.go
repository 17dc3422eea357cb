package pgfence

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deferlock/deferlock/worker"
)

// The SQLSTATEs that say something about the moment and not about the write.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)

var busyStates = map[string]bool{
	serializationFailure: true,
	deadlockDetected:     true,
	"55P03":              true, // lock_not_available: lock_timeout
	"25P03":              true, // idle_in_transaction_session_timeout
	"25006":              true, // read_only_sql_transaction: this is a standby by now
	"53300":              true, // too_many_connections
	"57P01":              true, // admin_shutdown
	"57P02":              true, // crash_shutdown
	"57P03":              true, // cannot_connect_now
}

// conflict tells whether the transaction was in the way of another, is gone, and
// may be begun anew.
func conflict(err error) bool {
	state := stateOf(err)
	return state == serializationFailure || state == deadlockDetected
}

// verdict tells the worker which errors are not the write's fault.
func verdict(err error) error {
	var connect *pgconn.ConnectError // with a SQLSTATE if the server has refused
	var doubt *inDoubt
	if busyStates[stateOf(err)] || errors.As(err, &connect) || errors.As(err, &doubt) {
		return worker.Busy(err)
	}
	return err
}

func stateOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// inDoubt is a commit that may have succeeded.
type inDoubt struct{ error }

// Unwrap returns what went wrong with the connection.
func (e *inDoubt) Unwrap() error { return e.error }

// committed is what a commit's error means.
func committed(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed):
		return errEnded
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.As(err, &pg):
		return fmt.Errorf("pgfence: commit: %w", err)
	}
	return &inDoubt{fmt.Errorf("pgfence: the commit was sent and no reply came: %w", err)}
}
