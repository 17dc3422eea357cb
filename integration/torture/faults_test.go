package torture_test

import (
	"context"
	"time"
)

// fault is one thing that is done to a fleet or to its servers. It ends with all
// healed.
type fault struct {
	name   string
	inject func(*run)
}

var faults = []fault{
	{"process killed", func(r *run) {
		r.dismiss(r.random.IntN(len(r.crew))).Kill()
		r.hire()
	}},
	{"process killed", func(r *run) { // twice as likely as others
		r.dismiss(r.random.IntN(len(r.crew))).Kill()
		r.hire()
	}},
	{"process asked to end", func(r *run) {
		r.dismiss(r.random.IntN(len(r.crew))).Term()
		r.hire()
	}},
	{"process stopped", func(r *run) {
		p := r.crew[r.random.IntN(len(r.crew))]
		p.Stop()
		r.pause(300, 2000)
		p.Continue()
	}},
	{"all processes stopped", func(r *run) {
		for _, p := range r.crew {
			p.Stop()
		}
		r.pause(300, 1500)
		for _, p := range r.crew {
			p.Continue()
		}
	}},
	{"Redis killed", func(r *run) {
		r.redis.Kill()
		r.pause(1, 800)
		r.redis.Start(r.t)
	}},
	{"Redis stopped", func(r *run) {
		r.redis.Stop(r.t)
		r.pause(100, 1500)
		r.redis.Continue(r.t)
	}},
	{"Redis asleep", func(r *run) { r.redis.Do(r.t, "debug", "sleep", r.drawn(100, 1200).Seconds()) }},
	{"scripts forgotten", func(r *run) { r.redis.Do(r.t, "script", "flush") }},
	{"connections to Redis cut", func(r *run) {
		r.redis.Do(r.t, "client", "kill", "type", "normal")
		r.redis.Do(r.t, "client", "kill", "type", "pubsub")
	}},
	{"Redis read-only", func(r *run) {
		r.redis.Do(r.t, "config", "set", "min-replicas-to-write", "1")
		r.pause(100, 800)
		r.redis.Do(r.t, "config", "set", "min-replicas-to-write", "0")
	}},
	{"memory full", func(r *run) {
		r.redis.Do(r.t, "config", "set", "maxmemory", "1")
		r.pause(100, 800)
		r.redis.Do(r.t, "config", "set", "maxmemory", "0")
	}},
	{"black hole", func(r *run) { r.bad("timeout", `"timeout": 0`) }},
	{"slow network", func(r *run) { r.bad("latency", `"latency": 50, "jitter": 50`) }},
	{"sliced network", func(r *run) { r.bad("slicer", `"average_size": 30, "size_variation": 20, "delay": 50`) }},
	{"connections reset", func(r *run) { r.bad("reset_peer", `"timeout": 20`) }},
	{"Postgres killed", func(r *run) {
		r.pg.Kill()
		r.pause(1, 800)
		r.pg.Start(r.t)
	}},
	{"backends terminated", func(r *run) {
		r.pg.Exec(r.t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	}},
	{"table locked", func(r *run) {
		r.pg.Exec(r.t, "BEGIN; LOCK TABLE effects IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(0.6); COMMIT")
	}},
	{"lock deleted", func(r *run) {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		_, _ = r.Queue().Free(ctx, "r0") // an operator's mistake; he may be unlucky
	}},
}

// bad makes the network bad for a while, one way or the other.
func (r *run) bad(toxic, attributes string) {
	r.weather.Bad(r.t, toxic, []string{"upstream", "downstream"}[r.random.IntN(2)], attributes)
	r.pause(200, 1500)
	r.weather.Good(r.t)
}
