package pgfence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

func TestLimitsAreBelowTheLocksLifeAndEndWithTheTransaction(t *testing.T) {
	cfg := config(t)
	cfg.MaxConns = 1
	pool := pgtest.Connect(t, cfg)
	prepare(t, pool)
	limits := func(in worker.Info) (lock, idle string) {
		t.Helper()
		err := pgfence.Write(call(t, in), pool, func(tx pgx.Tx) error {
			lock, idle = setting(t, tx, "lock_timeout"), setting(t, tx, "idle_in_transaction_session_timeout")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return lock, idle
	}
	for ttl, want := range map[time.Duration][2]string{
		0:               {"2500ms", "5s"}, // the default: 10 s
		8 * time.Second: {"2s", "4s"},
		time.Hour:       {"15min", "30min"},
	} {
		for _, resource := range []string{"alice", ""} {
			lock, idle := limits(worker.Info{ID: ttl.String(), Resource: resource, LockTTL: ttl})
			if lock != want[0] || idle != want[1] {
				t.Errorf("with a lock of %v on %q: lock_timeout %s, idle %s, want %v", ttl, resource, lock, idle, want)
			}
			if lock := setting(t, pool, "lock_timeout"); lock != "0" {
				t.Errorf("lock_timeout is %s afterwards", lock)
			}
		}
	}
	for own, want := range map[string][2]string{
		"SET lock_timeout = '300ms'; SET idle_in_transaction_session_timeout = '1h'": {"300ms", "4s"},
		"SET lock_timeout = '2min'; SET idle_in_transaction_session_timeout = '1s'":  {"2s", "1s"},
	} {
		execute(t, pool, own)
		for _, resource := range []string{"alice", ""} {
			lock, idle := limits(worker.Info{ID: own, Resource: resource, LockTTL: 8 * time.Second})
			if lock != want[0] || idle != want[1] {
				t.Errorf("%s, on %q: lock_timeout %s, idle %s, want %v", own, resource, lock, idle, want)
			}
		}
	}
}

// A holder that does nothing inside its transaction loses it, and its rows are
// free for the next one before its lock has expired.
func TestIdleHolderLosesItsTransaction(t *testing.T) {
	pool := database(t)
	ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1, LockTTL: 400 * time.Millisecond})
	err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
		if err := enter(ctx, "idle")(tx); err != nil {
			return err
		}
		next := worker.Info{ID: "w2", Resource: "alice", Fence: 2, LockTTL: 40 * time.Second}
		write(t, pool, next) // waits for the fence's row until the server has ended the other
		return enter(ctx, "idle too long")(tx)
	})
	if err == nil {
		t.Error("the transaction outlived its limit")
	}
	expect(t, pool, "w2")
}

func TestLockThatIsTakenIsWaitedForNoLongerThanTheLimit(t *testing.T) {
	pool := database(t)
	ctx := call(t, worker.Info{ID: "w1", Resource: "alice", Fence: 1})
	err := pgfence.Write(ctx, pool, func(tx pgx.Tx) error {
		ctx := call(t, worker.Info{ID: "w2", Resource: "alice", Fence: 2, LockTTL: 100 * time.Millisecond})
		err := pgfence.Write(ctx, pool, enter(ctx, "w2"))
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55P03" {
			t.Errorf("waiting for a lock that is not given back: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, pool)
}

// helperVariable makes of the test binary another process of the application,
// and says what that process does.
const helperVariable = "PGFENCE_TEST_HELPER"

// helper starts another process of the application and waits until it says that
// it is where it should be. It is killed when the test ends.
func helper(t *testing.T, what string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, helperVariable+"="+what)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != there {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	return cmd
}

const there = "there\n"

// helping is what such a process does. It ends when it is killed.
func helping(what string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := connectAgain(ctx)
	if err != nil {
		return err
	}
	switch what {
	case "stop inside the transaction":
		return holdAndStop(ctx, pool)
	case "die between commit and acknowledgement":
		return commitAndDie(ctx, pool)
	}
	return fmt.Errorf("unknown task %q", what)
}

// A holder that is stopped inside its transaction keeps the row of its fence
// locked: before there were limits, the next holder waited for ever.
func TestStoppedHolderDoesNotBlockItsLane(t *testing.T) {
	a := newApplication(t, worker.Config{LockTTL: time.Second})
	stopped := helper(t, "stop inside the transaction", a.environment()...)
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if out := a.do(t, "alice", "next"); !out.Deferred {
		t.Fatalf("the stopped process has no lock: %+v", out)
	}
	a.run(t)
	a.drained(t)
	expect(t, a.pool, "next")

	// It wakes up, and finds that it is too late. Its own write was never
	// accepted: the call that was to do it has not returned.
	if err := stopped.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Wait(); err != nil {
		t.Errorf("the holder that was stopped: %v", err)
	}
	expect(t, a.pool, "next")
}
