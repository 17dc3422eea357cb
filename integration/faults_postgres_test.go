package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

// The reply to COMMIT is lost: the row is there, nobody knows, and the write is
// done again without effect.
func TestRow07CommitReplyLost(t *testing.T) {
	r := newRig(t)
	p := r.Start(fleet.Spec{Run: true, Submit: steady(), Lose: []fleet.Loss{{Step: "commit", Every: 5}}})
	b := r.Start(fleet.Spec{Run: true, Submit: steady(), Batches: true, Lose: []fleet.Loss{{Step: "commit", Every: 5}}})
	p.Accepted(100)
	b.Accepted(100)
	r.Until("replies to be lost", func() bool { return p.Lost("commit") >= 5 && b.Lost("commit") >= 5 })
	t.Log(r.Finish())
}

// Postgres dies in the middle of batches, is gone for longer than a lock lives,
// and comes back.
func TestRow25PostgresKilledInMidBatch(t *testing.T) {
	t.Parallel()
	redis, pg := servers.NewRedis(t), servers.NewPostgres(t)
	f := fleet.New(t, fleet.Single(redis.Addr()), pg.URL())
	for range 2 {
		f.Start(fleet.Spec{Run: true, Submit: steady(), Batches: true, Patient: true, Think: 4 * time.Millisecond}).Accepted(50)
	}
	for range 2 {
		n := f.Accepted()
		pg.Kill()
		f.Until("writes to be deferred meanwhile", func() bool { return f.Accepted() > n+50 })
		before := commands(t, redis)
		<-time.After(2 * ttl)
		t.Logf("%d Redis commands in each life of a lock while Postgres is down", (commands(t, redis)-before)/2)
		pg.Start(t)
		n = f.Effects()
		f.Until("writes to take effect again", func() bool { return f.Effects() > n+50 })
	}
	f.Finish()
}

// Backends are terminated, tables are locked, transactions cannot be
// serialized, and there are too few connections. All of that passes, and counts
// against no write.
func TestRow26PostgresRefuses(t *testing.T) {
	t.Run("Terminated", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		for range 20 {
			r.database.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
			<-time.After(50 * time.Millisecond)
		}
		r.more(50)
		r.Finish()
	})
	t.Run("LockTimeout", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		r.database.Exec(t, "BEGIN; LOCK TABLE effects IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(2); COMMIT")
		r.more(50)
		if rep := r.Finish(); rep.Failed == 0 {
			t.Errorf("nothing was locked: %s", rep)
		}
	})
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			r := newRig(t)
			r.database.Exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''"+level+"''', current_database()); END $$")
			pair(r, func(s *fleet.Spec) { s.Submit.Goroutines = 8 })
			r.more(200)
			r.Finish()
		})
	}
	t.Run("TooManyConnections", func(t *testing.T) {
		t.Parallel()
		redis, pg := servers.NewRedis(t), servers.NewPostgres(t, "max_connections=8", "superuser_reserved_connections=3")
		f := fleet.New(t, fleet.Single(redis.Addr()), pg.URL())
		for range 2 {
			f.Start(fleet.Spec{Run: true, Think: 20 * time.Millisecond, Submit: &fleet.Load{Resources: 30, Goroutines: 10, Writes: 15}})
		}
		f.Until("writes to be accepted", func() bool { return f.Accepted() >= 200 })
		f.Quiet()
		for range 2 { // there must be room for the checks
			f.Processes()[0].Kill()
		}
		if rep := f.Finish(); rep.Failed == 0 {
			t.Errorf("there were connections enough: %s", rep)
		}
	})
}

// With synchronous_commit=off Postgres loses its last commits when it is killed,
// although it said they were done: what was acknowledged then is gone, and no
// library can bring it back. All that is left is in order and there once, and
// Setup has warned (TestSetupWarnsOfCommitsThatAreNotSynchronous in pgfence).
func TestRow27CommitsThatAreNotSynchronous(t *testing.T) {
	t.Parallel()
	redis := servers.NewRedis(t)
	pg := servers.NewPostgres(t, "synchronous_commit=off", "wal_writer_delay=200ms")
	f := fleet.New(t, fleet.Single(redis.Addr()), pg.URL())
	f.MayLose = true
	for range 2 {
		f.Start(fleet.Spec{Run: true, Submit: steady()}).Accepted(50)
	}
	pg.Kill()
	pg.Start(t)
	n := f.Accepted()
	f.Until("writes to be accepted again", func() bool { return f.Accepted() > n+50 })
	if rep := f.Finish(); rep.LostWrites == 0 {
		t.Errorf("nothing was lost: either luck, or this row needs a shorter way to the kill. %s", rep)
	}
}
