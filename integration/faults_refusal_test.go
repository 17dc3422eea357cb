package integration_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

// Redis refuses everything because it still loads its file.
func TestRow13RedisLoading(t *testing.T) {
	r := newRig(t, "--loading-process-events-interval-bytes", "1024")
	pair(r, nil)
	ballast := r.redis.Admin(t).Pipeline()
	for i := range 3000 {
		ballast.Set(t.Context(), "ballast"+strconv.Itoa(i), strings.Repeat("x", 500), 0)
	}
	if _, err := ballast.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.redis.Do(t, "bgrewriteaof")
	r.Until("the file to be compact, which is what is loaded slowly", func() bool {
		info := r.redis.Do(t, "info", "persistence")
		return strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	})
	r.redis.Kill()
	r.redis.StartSlowly(t, "--key-load-delay", "300")
	if info := r.redis.Do(t, "info", "persistence"); !strings.Contains(info, "loading:1") {
		t.Error("it does not load: the row proves nothing")
	}
	r.more(50)
	r.Finish()
}

// The disk is full: Redis takes no more writes, and says so.
func TestRow13DiskFull(t *testing.T) {
	r := newRig(t, "--appendonly", "no")
	pair(r, nil)
	// The file that the append-only file is to be is a device that is always full.
	dir := filepath.Join(r.redis.Dir(), "appendonlydir")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(dir, "temp-appendonly.aof.incr")); err != nil {
		t.Fatal(err)
	}
	r.redis.Do(t, "config", "set", "appendonly", "yes")
	r.Until("Redis to refuse writes", func() bool {
		return strings.Contains(r.redis.Do(t, "info", "persistence"), "aof_last_write_status:err")
	})
	<-time.After(2 * ttl)
	r.redis.Do(t, "config", "set", "appendonly", "no")
	r.more(50)
	r.Finish()
}

// Memory is full, and nothing is evicted: new writes are refused, and said to
// be; those that wait are done all the same, and make room.
func TestRow14OutOfMemory(t *testing.T) {
	r := newRig(t, "--maxmemory-policy", "noeviction")
	r.redis.Do(t, "config", "set", "maxmemory", "3mb")
	p := r.Start(fleet.Spec{Submit: &fleet.Load{Resources: 8, Goroutines: 4, Push: 100, Pad: 10_000, Once: true}})
	r.Until("memory to be full", func() bool { return p.Refused() > 50 })
	p.Quiet()
	before := p.Taken()
	r.Start(fleet.Spec{Run: true})
	rep := r.Finish()
	if rep.Refused == 0 || rep.Unknown > 0 || rep.Accepted != before || rep.Effects != before {
		t.Errorf("a full memory must refuse clearly, and let what waits be done: %s", rep)
	}
}

// Redis may only be read from, or has not the replicas it wants.
func TestRow20ReadOnlyOrTooFewReplicas(t *testing.T) {
	r := newRig(t)
	pair(r, nil)
	other := servers.NewRedis(t)
	host, port, _ := strings.Cut(other.Addr(), ":")
	r.redis.Do(t, "config", "set", "min-replicas-to-write", "1")
	<-time.After(ttl)
	r.redis.Do(t, "config", "set", "min-replicas-to-write", "0")
	r.more(50)
	// It becomes a replica of a primary that does not answer, and so keeps its keys.
	other.Stop(t)
	r.redis.Do(t, "replicaof", host, port)
	<-time.After(2 * ttl)
	r.redis.Do(t, "replicaof", "no", "one")
	other.Continue(t)
	r.more(50)
	r.Finish()
}

// Redis does not answer for longer than a lock lives: it sleeps, it is paused,
// a script of somebody else's runs for ever.
func TestRow22RedisAsleep(t *testing.T) {
	t.Run("DebugSleep", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		r.redis.Do(t, "debug", "sleep", "1.5")
		r.more(50)
		r.Finish()
	})
	t.Run("ClientPause", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		r.redis.Do(t, "client", "pause", 1500, "all")
		r.more(50)
		r.Finish()
	})
	t.Run("Stopped", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		r.redis.Stop(t)
		<-time.After(3 * ttl)
		r.redis.Continue(t)
		r.more(50)
		r.Finish()
	})
	t.Run("BusyScript", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		r.redis.Do(t, "config", "set", "busy-reply-threshold", "10")
		var script sync.WaitGroup
		busy := r.redis.Admin(t)
		script.Go(func() { _ = busy.Eval(t.Context(), "while true do end", nil).Err() }) // it is killed
		<-time.After(3 * ttl)
		r.redis.Do(t, "script", "kill")
		script.Wait()
		r.more(50)
		r.Finish()
	})
}

// Connections are cut all the time, there are hardly any to be had, or each
// process has only one.
func TestRow24Connections(t *testing.T) {
	t.Run("KillStorm", func(t *testing.T) {
		r := newRig(t)
		pair(r, nil)
		admin := r.redis.Admin(t)
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		for ctx.Err() == nil {
			_ = admin.Do(ctx, "client", "kill", "type", "normal", "skipme", "yes").Err() // the time is over
			_ = admin.Do(ctx, "client", "kill", "type", "pubsub").Err()
			<-time.After(20 * time.Millisecond)
		}
		r.more(50)
		r.Finish()
	})
	t.Run("MaxClients", func(t *testing.T) {
		r := newRig(t)
		admin := r.redis.Admin(t)
		if err := admin.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		pair(r, nil)
		set := func(n int) {
			if err := admin.ConfigSet(t.Context(), "maxclients", strconv.Itoa(n)).Err(); err != nil {
				t.Fatal(err)
			}
		}
		set(4)
		if err := admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err(); err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * ttl)
		set(10_000)
		r.more(50)
		r.Finish()
	})
	t.Run("PoolOfOne", func(t *testing.T) {
		r := newRig(t)
		pair(r, func(s *fleet.Spec) { s.PoolSize = 1 })
		r.more(100)
		r.Finish()
	})
}
