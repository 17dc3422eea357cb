package worker_test

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// schedule has the driver do what the plan says, and the faults it draws now.
func (w *world) schedule() {
	p := w.plan
	for range p.processes {
		w.newProcess()
	}
	current := append([]*process(nil), w.all...) // the living one in each place
	w.at(w.began, func() {
		for _, q := range current[:p.runners] {
			q.start()
		}
	})
	for _, s := range p.submissions {
		w.at(w.began.Add(s.at), func() {
			if q := current[s.by]; !q.isDead() {
				q.submit(s.submission)
			}
		})
	}
	if !p.calm {
		w.scheduleFaults(current)
	}
	w.at(w.began.Add(p.horizon), func() { w.heal(current) })
}

// scheduleFaults draws the faults that are not the network's.
func (w *world) scheduleFaults(current []*process) {
	rng, p := w.rng, w.plan
	some := func(most int, do func()) {
		for range rng.IntN(most + 1) {
			w.at(w.began.Add(between(rng, 0, p.horizon)), do)
		}
	}
	some(3, func() { w.replace(current, w.busiest(current), between(rng, 0, 2*p.cfg.LockTTL)) })
	some(4, func() { current[w.busiest(current)].pause(between(rng, time.Millisecond, 2*p.cfg.LockTTL)) })
	some(2, func() { w.restart(current[w.busiest(current)], between(rng, 0, 2*time.Second)) })
	some(2, func() {
		w.say("Redis forgets its scripts")
		w.server.FlushScripts(w.t)
	})
	if rng.IntN(3) == 0 {
		some(2, w.freeLock)
	}
	switch rng.IntN(4) {
	case 0:
		forget := rng.IntN(2) == 0
		some(3, func() {
			w.setClock(between(rng, -12*time.Minute, 2*time.Minute))
			if forget {
				w.loseClock() // then fences begin anew, below what the database has seen
			}
		})
	case 1:
		some(3, func() { w.setClock(between(rng, -2*time.Second, 2*time.Second)) })
	}
	if rng.IntN(4) == 0 {
		some(1, w.loseClock)
	}
}

// busiest draws one of the processes, mostly one that has a function running.
func (w *world) busiest(current []*process) int {
	at, any := w.rng.IntN(len(current)), w.rng.IntN(3) == 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 0; i < len(current) && !any; i++ {
		next := (at + i) % len(current)
		if slices.ContainsFunc(w.records.calls, func(c *call) bool { return c.process == current[next] && !c.ended }) {
			return next
		}
	}
	return at
}

// replace kills the process at a place and puts another one there after a time.
func (w *world) replace(current []*process, i int, after time.Duration) {
	old := current[i]
	if old.isDead() {
		return
	}
	old.kill()
	w.at(time.Now().Add(after), func() {
		current[i] = w.newProcess()
		if i < w.plan.runners {
			current[i].start()
		}
	})
}

// restart stops the Run of a process and starts another after a time.
func (w *world) restart(p *process, after time.Duration) {
	if p.stop == nil || p.isDead() {
		return
	}
	p.end()
	w.at(time.Now().Add(after), func() { w.startAgain(p) })
}

// startAgain starts a Run as soon as the one before has ended.
func (w *world) startAgain(p *process) {
	if p.isDead() || p.stop == nil {
		return
	}
	if !p.ended() {
		w.at(time.Now().Add(100*time.Millisecond), func() { w.startAgain(p) })
		return
	}
	p.start()
}

// freeLock deletes a lock, as an operator would by hand.
func (w *world) freeLock() {
	w.tick()
	mini := w.server.Mini()
	var locks []string
	for _, key := range mini.Keys() {
		if ownKeys.MatchString(key) && strings.Contains(key, "}:lock:") {
			locks = append(locks, key)
		}
	}
	if len(locks) == 0 {
		return
	}
	key := locks[w.rng.IntN(len(locks))]
	mini.Del(key)
	_, resource, _ := strings.Cut(key, "}:lock:")
	if strings.HasPrefix(resource, "\x00") {
		resource = aloneResource(resource[1:])
	}
	w.say("the lock of %q is freed", resource)
	w.breakLocks(resource)
}

// setClock sets Redis's clock to so much after the real one. Locks may end by
// that.
func (w *world) setClock(offset time.Duration) {
	w.say("Redis's clock goes from %v to %v", w.offset, offset)
	w.offset = offset
	w.tick()
	w.breakLocks("")
}

// loseClock deletes the clocks that give stamps and fences.
func (w *world) loseClock() {
	w.say("Redis loses its clock key")
	w.tick()
	for shard := range w.plan.cfg.Shards {
		w.server.Mini().Del("{" + simName + ":" + strconv.Itoa(shard) + "}:clock")
	}
	w.clockLost = true
}

// heal ends all faults, and has every process run the queue.
func (w *world) heal(current []*process) {
	w.say("all is well from here on")
	w.troubled = false
	if w.offset != 0 {
		w.setClock(0)
	}
	for i, q := range current {
		if q.isDead() {
			current[i] = w.newProcess()
		}
		w.mu.Lock()
		current[i].faults++ // its calls under way may still suffer
		w.mu.Unlock()
		current[i].start()
	}
}
