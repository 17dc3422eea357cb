package deferral_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// calls is a story in which every call of the core is made, and answers what it
// was told. key is what the requests of the call contain.
type calls struct {
	*bench
	turn *deferral.Turn
	pop  *deferral.Delivery

	direct deferral.Write // what turn was got for
}

var everyCall = []struct {
	name string
	key  string
	do   func(c *calls) string
}{
	{"push", "lane:q", func(c *calls) string { return c.pushes(write("q", "p")) }},
	{"push the same again", "lane:q", func(c *calls) string { return c.pushes(write("q", "p")) }},
	{"push another as the same", "lane:q", func(c *calls) string { return c.pushes(deferral.Write{Resource: "q", ID: "p"}) }},
	{"push for later", "lane:q", func(c *calls) string {
		return c.pushes(deferral.Write{Resource: "q", ID: "later", Delay: time.Hour})
	}},
	{"push more than fits", "lane:q", func(c *calls) string { c.push("q", "p2", "p3", "p4"); return c.pushes(write("q", "p5")) }},
	{"admit a", "lane:r", func(c *calls) string { return c.admits("r", "a") }},
	{"admit b", "lane:r", func(c *calls) string { return c.admits("r", "b") }},
	{"admit c", "lane:r", func(c *calls) string { return c.admits("r", "c") }},
	{"a is done, b begins", "lane:r", func(c *calls) string { return c.settles(deferral.Done, 0, 1) }},
	{"b fails, and begins again", "lane:r", func(c *calls) string { return c.settles(deferral.Failed, 0, 1) }},
	{"b is buried, c begins", "lane:r", func(c *calls) string { return c.settles(deferral.Buried, 0, 1) }},
	{"push b, dead", "lane:r", func(c *calls) string { return c.pushes(write("r", "b")) }},
	{"c steps aside", "lane:r", func(c *calls) string { return c.settles(deferral.Aside, time.Hour, 0) }},
	{"look", "due", func(c *calls) string { return fmt.Sprint(c.due(0, 0).Endless) }},
	{"enter", "lane:q", func(c *calls) string { c.turn = c.enter("q", 2); return started(c.turn) }},
	{"both return", "lane:q", func(c *calls) string { return c.settles(deferral.Return, 0, 0) }},
	{"enter again", "lane:q", func(c *calls) string { c.turn = c.enter("q", 1); return started(c.turn) }},
	{"it fails, and rests", "lane:q", func(c *calls) string { return c.settles(deferral.Failed, time.Hour, 0) }},
	{"enter a lane that rests", "lane:q", func(c *calls) string { c.refused("q"); return "" }},
	{"admit d", "lane:s", func(c *calls) string { return c.admits("s", "d") }},
	{"d fails, and enters", "lane:s", func(c *calls) string { return c.settles(deferral.Entered, 0, 5) }},
	{"d halts", "lane:s", func(c *calls) string { return c.settles(deferral.Halted, 0, 5) }},
	{"enter a lane that is halted", "lane:s", func(c *calls) string { c.refused("s"); return "" }},
	{"pop", "lane:t", func(c *calls) string { c.push("t", "e", "f", "g"); return c.pops("t") }},
	{"ack", "lane:t", func(c *calls) string { return fmt.Sprint(c.pop.Ack(c.t.Context())) }},
	{"pop once more", "lane:t", func(c *calls) string { return c.pops("t") }},
	{"bury", "lane:t", func(c *calls) string { return fmt.Sprint(c.pop.Bury(c.t.Context(), nil)) }},
	{"pop another", "lane:t", func(c *calls) string { return c.pops("t") }},
	{"retry", "lane:t", func(c *calls) string { return fmt.Sprint(c.pop.Retry(c.t.Context(), time.Hour, nil)) }},
	{"revive", "lane:t", func(c *calls) string { return c.revives("t", "f") }},
	{"resume", "lane:s", func(c *calls) string { return fmt.Sprint(c.q.Resume(c.t.Context(), "s")) }},
}

func (c *calls) pushes(w deferral.Write) string {
	id, err := c.q.Push(c.t.Context(), w)
	return fmt.Sprint(id, err)
}

// admits makes no difference between the reasons to wait: who asks again, and is
// in the lane already, waits all the same.
func (c *calls) admits(resource, id string) string {
	a, err := c.q.Admit(c.t.Context(), write(resource, id))
	if err != nil {
		return err.Error()
	}
	if a.Turn != nil {
		c.turn, c.direct = a.Turn, write(resource, id)
		return "runs"
	}
	return fmt.Sprint("waits behind ", a.Ahead, a.HeldFor > 0)
}

func (c *calls) settles(fate deferral.Fate, rest time.Duration, next int) string {
	vs := verdict(c.turn, fate, rest)
	if fate == deferral.Entered {
		vs = []deferral.Verdict{{Delivery: c.turn.Direct(c.direct), Fate: fate}}
	}
	s, err := c.turn.Settle(c.t.Context(), deferral.Settlement{Verdicts: vs, Next: next, GoOn: deferral.Always})
	return fmt.Sprintf("%+v %v %s", s, err, started(c.turn))
}

// pops has its request's reply lost in the claim, not in the look at the index,
// which hands out nothing the second time.
func (c *calls) pops(lane string) string {
	ds, err := c.q.Pop(c.t.Context(), 1, 0)
	if len(ds) != 1 || ds[0].Resource != lane {
		c.t.Fatalf("popped %v, %v", ds, err)
	}
	c.pop = ds[0]
	return fmt.Sprint(ds[0].ID, ds[0].Attempt, err)
}

// revives makes no difference between a write that was revived and one that may
// have been: when it is asked again it finds no dead letter, and says so.
func (c *calls) revives(resource, id string) string {
	err := c.q.Revive(c.t.Context(), resource, id)
	if errors.Is(err, deferral.ErrUnclear) {
		err = nil
	}
	return fmt.Sprint(err)
}

// picture is the key space without what is different every time: moments are
// past or to come, tokens are there or not.
func (b *bench) picture() string {
	b.t.Helper()
	ctx, now := b.t.Context(), b.now()
	moment := func(us float64) string {
		switch at := time.UnixMicro(int64(us)); {
		case at.Year() > 2200:
			return "never"
		case at.After(now.Add(10 * time.Second)):
			return "later"
		}
		return "now"
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(b.contents())) {
		name := strings.TrimPrefix(k, b.key(""))
		line := name
		switch topic, _, _ := strings.Cut(name, ":"); topic {
		case "lane":
			line += fmt.Sprint(b.rdb.ZRange(ctx, k, 0, -1).Val())
		case "due", "later":
			var list []string
			for _, z := range b.rdb.ZRangeWithScores(ctx, k, 0, -1).Val() {
				list = append(list, fmt.Sprint(z.Member, " ", moment(z.Score)))
			}
			slices.Sort(list)
			line += fmt.Sprint(list)
		case "tries":
			for ref, text := range b.rdb.HGetAll(ctx, k).Val() {
				f := strings.Fields(text)
				rest, _ := strconv.ParseFloat(f[1], 64)
				out = append(out, fmt.Sprintf("%s has started %s times, rests till %s, started now: %v, %q",
					ref, f[0], moment(rest), f[3] != "-", f[4:]))
			}
		case "graves":
			for ref, text := range b.rdb.HGetAll(ctx, k).Val() {
				f := strings.Fields(text)
				out = append(out, fmt.Sprintf("%s is dead after %s starts, %q", ref, f[0], f[2:]))
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// Clients repeat what they got no reply to, and networks deliver twice: each
// call is made with its reply lost once and twice, with its request lost, and
// after the server has forgotten every script.
func TestEveryScriptRunTwiceHasTheEffectOfOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := p.Client(t)
		tell := func(fault int, inject func(marker string)) (answers []string, picture string) {
			if err := rdb.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			b := newBench(t, s, deferral.Config{MaxDepth: 4})
			b.q = b.another(rdb)
			b.due(0, 0)
			c := &calls{bench: b}
			for i, call := range everyCall {
				if i == fault {
					inject(b.key(call.key))
				}
				answers = append(answers, call.name+": "+call.do(c))
			}
			redistest.Audit(t, b.rdb, "n")
			return answers, b.picture()
		}
		tell(-1, nil) // the scripts are known from here on
		want, picture := tell(-1, nil)
		faults := map[string]func(string){"reply lost": func(marker string) { p.DropReply(marker, 1) }}
		if s.IsReal() { // miniredis is too slow for more
			faults["two replies lost"] = func(marker string) { p.DropReply(marker, 2) }
			faults["scripts forgotten"] = func(string) { s.FlushScripts(t) }
			faults["request lost"] = func(marker string) { p.RefuseRequest(marker, 1) }
		}
		for name, inject := range faults {
			for i, call := range everyCall {
				got, pictureNow := tell(i, inject)
				if slices.Equal(got, want) && pictureNow == picture {
					continue
				}
				t.Errorf("%s, %s:", call.name, name)
				for k := range got {
					if got[k] != want[k] {
						t.Errorf("answered %q, want %q", got[k], want[k])
					}
				}
				if pictureNow != picture {
					t.Errorf("left\n%s\nwant\n%s", pictureNow, picture)
				}
			}
		}
	})
}

// When no reply arrives at all the caller hears that it may have happened, and
// repeats the call.
func TestCallThatStayedUnclearIsRepeated(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		p := redistest.NewProxy(t, b.s)
		b.q = b.another(p.Client(t))
		unclear := func(what string, marker string, call func() error) {
			t.Helper()
			p.DropReply(b.key(marker), 4)
			if err := call(); !errors.Is(err, deferral.ErrUnclear) {
				t.Fatalf("%s without a reply: %v", what, err)
			}
			p.Heal()
		}
		push := func() error { _, err := b.q.Push(t.Context(), write("r", "a")); return err }
		b.push("s", "x", "y") // the scripts are known from here on
		b.drain("s")
		b.settle(b.granted("s", "x"), 0)
		unclear("push", "lane:r", push)
		if err := push(); err != nil {
			t.Error(err)
		}
		admit := func() error { _, err := b.q.Admit(t.Context(), write("r", "b")); return err }
		unclear("admit behind", "lane:r", admit)
		if err := admit(); err != nil || b.lane("r") != "a b" {
			t.Errorf("%v, the lane has %q", err, b.lane("r"))
		}
		unclear("enter", "lane:r", func() error { _, err := b.q.Enter(t.Context(), "r", 1, 0); return err })
		turn := b.enter("r", 1) // the lock was given back unseen
		b.wantStarted(turn, "a:2")
		settle := func() error {
			_, err := turn.Settle(t.Context(), deferral.Settlement{Verdicts: verdict(turn, deferral.Failed, 0), GoOn: deferral.Always})
			return err
		}
		unclear("settle", "lane:r", settle)
		s, err := turn.Settle(t.Context(), deferral.Settlement{Verdicts: verdict(turn, deferral.Failed, 0), GoOn: deferral.Always})
		if err != nil || !s.Held {
			t.Errorf("settled again: %+v, %v", s, err)
		}
		if got := b.drain("r"); got != "a b" {
			t.Errorf("ran %q", got)
		}
		unclear("admit", "lane:r", func() error { _, err := b.q.Admit(t.Context(), write("r", "c")); return err })
		b.settle(b.granted("r", "c"), 0)
	})
}

// An answer is unclear only if the request may have reached Redis.
func TestCallThatWasNeverSentIsNotUnclear(t *testing.T) {
	onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
		b.push("r", "a")
		turn := b.enter("r", 1)
		b.s.Kill(t)
		dead := b.another(b.s.ClientWith(t, func(o *redis.Options) { o.MaxRetries = -1 }))
		for what, call := range map[string]func() error{
			"push":   func() error { _, err := dead.Push(t.Context(), write("r", "b")); return err },
			"admit":  func() error { _, err := dead.Admit(t.Context(), write("r", "b")); return err },
			"look":   func() error { _, err := dead.Due(t.Context(), 0, 1, 0, 0); return err },
			"pop":    func() error { _, err := dead.Pop(t.Context(), 1, 0); return err },
			"settle": func() error { _, err := turn.Settle(t.Context(), deferral.Settlement{}); return err },
		} {
			if err := call(); err == nil || what != "settle" && errors.Is(err, deferral.ErrUnclear) {
				t.Errorf("%s to a dead Redis: %v", what, err)
			}
		}
		turn.Lease().End()
		b.s.Restart(t)
		b.rdb.FlushAll(t.Context())
	})
}
