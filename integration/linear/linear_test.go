package linear_test

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/integration/servers"
	"github.com/deferlock/deferlock/internal/redistest"
)

var (
	seed = flag.Uint64("seed", 1, "which calls are made; what they meet does not repeat")
	ops  = flag.Int("ops", 10_000, "how many calls are made")
)

func TestMain(m *testing.M) { servers.Main(m) }

const (
	clients = 16
	perName = 100 // calls that are made on one resource
)

// mix is how often each thing is done.
type mix []struct {
	share int
	do    func(c *client, resource string)
}

var (
	locks = mix{{1, func(c *client, r string) { c.acquire(r) }}}

	lanes = mix{
		{24, func(c *client, r string) { c.admit(r) }},
		{12, func(c *client, r string) { c.push(r) }},
		{20, func(c *client, r string) { c.enter(r, 1+c.random.IntN(6)) }},
		{6, func(c *client, r string) { c.operate("cancel", r) }},
		{8, func(c *client, r string) { c.operate("lookup", r) }},
		{4, func(c *client, r string) { c.operate("revive", r) }},
		{1, func(c *client, r string) { c.operate("pause", r) }},
		{5, func(c *client, r string) { c.operate("resume", r) }},
	}
	harm = mix{
		{2, func(c *client, r string) { c.operate("free", r) }},
		{5, func(c *client, _ string) { c.pop() }},
		{2, func(c *client, r string) {
			if len(c.open) > 0 {
				c.abandon(c.open[0])
			}
		}},
	}
)

// one draws what is done next.
func (m mix) one(c *client, resource string) {
	all := 0
	for _, x := range m {
		all += x.share
	}
	n := c.random.IntN(all)
	for _, x := range m {
		if n -= x.share; n < 0 {
			x.do(c, resource)
			return
		}
	}
}

// live makes a client's share of the calls.
func (c *client) live(m mix, calls int) {
	fate := func() deferral.Fate {
		f := fates[c.random.IntN(len(fates))]
		if f == deferral.Return && c.loss != nil {
			return deferral.Failed // see TestLanesAreLinearizableWhenRepliesAreLost
		}
		return f
	}
	perTime := 4 // resources that are in use at a time
	if c.loss != nil {
		perTime = 8 // calls last long, and each more that is made meanwhile doubles the ways to order them
	}
	for len(c.history) < calls {
		group := len(c.history) * clients / perName / perTime
		if len(c.open) > 0 && c.random.IntN(3) > 0 {
			c.finish(c.open[c.random.IntN(len(c.open))], fate, c.random.IntN(6))
			continue
		}
		m.one(c, fmt.Sprintf("r%d", group*perTime+c.random.IntN(perTime)))
	}
}

// tidy ends all that is left, on its own: what was accepted must still be there.
func (c *client) tidy(resources []string) {
	c.loss = nil
	done := func() deferral.Fate { return deferral.Done }
	for _, r := range resources {
		c.operate("resume", r)
		c.operate("free", r)
		for c.enter(r, 100) {
			for len(c.open) > 0 {
				c.finish(c.open[0], done, 100)
			}
		}
	}
}

// history is what clients record who make so many calls as m says, and then tidy
// up.
func history(t *testing.T, m mix, lossy bool, calls int) []porcupine.Operation {
	t.Helper()
	server := servers.NewRedis(t, "--appendonly", "no")
	epoch := time.Now()
	var all []porcupine.Operation
	var cs []*client
	for i := range clients {
		opts := server.Options()
		var l *loss
		if lossy {
			l = &loss{}
			opts.Dialer = l.dial
		}
		rdb := redis.NewClient(opts)
		t.Cleanup(func() { _ = rdb.Close() })
		cs = append(cs, newClient(t, i, epoch, *seed, rdb, l))
	}
	// A reply that is lost is to be that of a script that ran, not of one that the
	// server does not know yet.
	first := newClient(t, clients+1, epoch, *seed, server.Client(t), nil)
	first.live(m, 500)
	cs = append(cs, first)
	var wg sync.WaitGroup
	for _, c := range cs[:clients] {
		wg.Go(func() { c.live(m, calls/clients) })
	}
	wg.Wait()
	var resources []string
	for _, c := range cs {
		for _, o := range c.history {
			resources = append(resources, o.Input.(call).resource)
		}
		for len(c.open) > 0 {
			c.abandon(c.open[0])
		}
		all = append(all, c.history...)
	}
	slices.Sort(resources)
	last := newClient(t, clients, epoch, *seed, server.Client(t), nil)
	last.tidy(slices.Compact(resources))
	redistest.Audit(t, server.Client(t), "n")
	return stamped(append(all, last.history...))
}

// stamped tells the calls that stored a write which stamp it got, where that is
// sure: there was one such call, and the write was delivered. Without that the
// order of what was stored at the same time shows only when it is delivered, long
// after, and to find it takes for ever.
func stamped(h []porcupine.Operation) []porcupine.Operation {
	stored, stamps := map[string][]int{}, map[string]int64{}
	for i, o := range h {
		in, out := o.Input.(call), o.Output.(answer)
		switch in.op {
		case "push", "admit", "revive":
			stored[in.resource+" "+in.id] = append(stored[in.resource+" "+in.id], i)
		}
		for _, s := range out.batch {
			stamps[in.resource+" "+s.id] = s.stamp
		}
	}
	for id, by := range stored {
		if out := h[by[0]].Output.(answer); len(by) == 1 && !out.won {
			out.stamp = stamps[id]
			h[by[0]].Output = out
		}
	}
	return h
}

func TestLocksAreLinearizable(t *testing.T) { check(t, locks, false) }

func TestLocksAreLinearizableWhenRepliesAreLost(t *testing.T) { check(t, locks, true) }

// An operator may take a lock away: Acquire, which is two scripts in one flight,
// is left out here, for it says "held" if that happens between the two.
func TestLanesAreLinearizable(t *testing.T) { check(t, slices.Concat(lanes, harm), false) }

// Nobody takes a lock away: a call that is repeated could be carried out before
// that and once more after it. And nobody says Return: a settlement that starts
// the same write again, and is repeated, starts with it what was pushed meanwhile.
func TestLanesAreLinearizableWhenRepliesAreLost(t *testing.T) {
	check(t, slices.Concat(lanes, locks, locks, locks, locks), true)
}

func check(t *testing.T, m mix, lossy bool) {
	t.Parallel()
	began := time.Now()
	h := history(t, m, lossy, *ops)
	recorded := time.Since(began)
	count, won, unclear := map[string]int{}, 0, 0
	for _, o := range h {
		count[o.Input.(call).op]++
		won += b2i(o.Output.(answer).won)
		unclear += b2i(o.Output.(answer).unclear)
	}
	verdict := judge(h, resource.step)
	t.Logf("%d operations %v, %d of them won, %d unclear, recorded in %v, checked in %v",
		len(h), count, won, unclear, recorded, time.Since(began)-recorded)
	if verdict != porcupine.Ok {
		t.Errorf("%v: %s", verdict, first(h))
	}
	if lossy != (unclear > 0) || won < len(h)/20 {
		t.Errorf("%d unclear and %d won of %d: that proves little", unclear, won, len(h))
	}
}

// judge is porcupine's verdict. Unknown means that it has run out of time.
func judge(h []porcupine.Operation, step func(resource, call, answer) (resource, bool)) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(step), h, time.Minute)
}

// first describes the first resource whose history is not in order, as far as it
// can be put in order.
func first(h []porcupine.Operation) string {
	m := model(resource.step)
	for _, part := range m.Partition(h) {
		one := m
		one.Partition = nil
		result, info := porcupine.CheckOperationsVerbose(one, part, 10*time.Second)
		if result == porcupine.Ok {
			continue
		}
		var longest []porcupine.Operation
		for _, of := range info.PartialLinearizationsOperations() {
			for _, l := range of {
				if len(l) > len(longest) {
					longest = l
				}
			}
		}
		return describe(part, longest)
	}
	return "every resource by itself is in order"
}

// describe shows the end of what could be put in order, and what comes next.
func describe(part, ordered []porcupine.Operation) string {
	state := resource{}
	text := ""
	for i, o := range ordered {
		state, _ = state.step(o.Input.(call), o.Output.(answer))
		if i >= len(ordered)-8 {
			text += line(o) + fmt.Sprintf("    now %+v\n", state)
		}
	}
	key := func(o porcupine.Operation) string { return fmt.Sprint(o.ClientId, o.Call, o.Input, o.Output) }
	done := map[string]bool{}
	for _, o := range ordered {
		done[key(o)] = true
	}
	rest := slices.DeleteFunc(slices.Clone(part), func(o porcupine.Operation) bool { return done[key(o)] })
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return int(a.Return/2 - b.Return/2) })
	text += fmt.Sprintf("%d of %d in order; none of these fits:\n", len(ordered), len(part))
	for _, o := range rest[:min(10, len(rest))] {
		text += line(o)
	}
	return text
}

func line(o porcupine.Operation) string {
	return fmt.Sprintf("client %d from %d to %d: %+v -> %+v\n", o.ClientId, o.Call, o.Return, o.Input, o.Output)
}
