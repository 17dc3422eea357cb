package integration_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

// commands is how many commands a Redis has executed.
func commands(t *testing.T, r *servers.Redis) int {
	t.Helper()
	_, rest, _ := strings.Cut(r.Do(t, "info", "stats"), "total_commands_processed:")
	digits, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pair starts two processes that work and submit, and waits until they do.
func pair(r *rig, change func(*fleet.Spec)) {
	for i := range 2 {
		s := fleet.Spec{Run: true, Submit: steady()}
		s.Submit.Seed = uint64(i)
		if change != nil {
			change(&s)
		}
		r.Start(s).Accepted(20)
	}
}

// more waits until the fleet has accepted n more writes.
func (r *rig) more(n int) {
	at := r.Accepted() + n
	r.Until("more writes to be accepted", func() bool { return r.Accepted() >= at })
}

// Redis is killed and comes back with what its append-only file has.
func TestRow10RedisKilledAndRestarted(t *testing.T) {
	r := newRig(t)
	pair(r, nil)
	for range 3 {
		r.redis.Kill()
		<-time.After(ttl / 2)
		r.redis.Start(t)
		r.more(50)
	}
	r.Finish()
}

// The last moments before a power cut never reached the disk. What was accepted
// then may be gone, what was done may come again: nothing is done twice, and no
// fence goes back.
func TestRow11PowerCut(t *testing.T) {
	r := newRig(t)
	r.MayLose = true
	pair(r, nil)
	for range 3 {
		r.redis.Kill()
		if r.redis.CutTail(t, 20_000) == 0 {
			t.Error("there was nothing to lose")
		}
		r.redis.Start(t)
		r.redis.Rewrite(t) // or half a script may come to life at the next start
		r.more(50)
	}
	t.Log(r.Finish())
}

// Redis loses everything while locks are held and writes wait.
func TestRow12RedisEmptied(t *testing.T) {
	r := newRig(t)
	r.MayLose = true
	pair(r, func(s *fleet.Spec) { s.Think = 4 * time.Millisecond })
	for range 3 {
		r.redis.Do(t, "flushall")
		r.more(50)
	}
	t.Log(r.Finish())
}

// Redis forgets its scripts all the time, and is restarted in between.
func TestRow21ScriptsForgotten(t *testing.T) {
	r := newRig(t)
	admin := r.redis.Admin(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			_ = admin.ScriptFlush(t.Context()).Err() // it may be down just now
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	pair(r, nil)
	r.redis.Kill()
	r.redis.Start(t)
	r.more(100)
	close(stop)
	<-done
	r.Finish()
}
