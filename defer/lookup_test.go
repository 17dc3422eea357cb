package deferral_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// operated is a queue under an operator's eyes, whose keys are audited when the
// test ends.
type operated struct {
	*deferral.Queue
	t   *testing.T
	rdb redis.UniversalClient
}

func operate(t *testing.T, rdb redis.UniversalClient, cfg deferral.Config) operated {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "accounts"
	}
	q, err := deferral.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redistest.Audit(t, rdb, cfg.Name) })
	return operated{q, t, rdb}
}

// onEachServer runs f with a queue on a miniredis and on a redis-server.
func onEachServer(t *testing.T, cfg deferral.Config, f func(t *testing.T, q operated)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { f(t, operate(t, s.Client(t), cfg)) })
}

func (q operated) push(resource, id string) {
	q.t.Helper()
	w := deferral.Write{Resource: resource, ID: id, Kind: "k", Payload: []byte("payload of " + id), Meta: map[string]string{"m": "v"}}
	if _, err := q.Push(q.t.Context(), w); err != nil {
		q.t.Fatal(err)
	}
}

func (q operated) pushLater(resource, id string, delay time.Duration) {
	q.t.Helper()
	if _, err := q.Push(q.t.Context(), deferral.Write{Resource: resource, ID: id, Delay: delay}); err != nil {
		q.t.Fatal(err)
	}
}

// enter starts up to n writes of a lane.
func (q operated) enter(lane string, n int) *deferral.Turn {
	q.t.Helper()
	turn, err := q.Enter(q.t.Context(), lane, n, 0)
	if err != nil || turn == nil {
		q.t.Fatalf("enter %q: %v, %v", lane, turn, err)
	}
	return turn
}

// settle ends a turn with the same fate for all its writes.
func (q operated) settle(turn *deferral.Turn, v deferral.Verdict) {
	q.t.Helper()
	s := deferral.Settlement{GoOn: deferral.Always}
	for _, d := range turn.Deliveries() {
		v.Delivery = d
		s.Verdicts = append(s.Verdicts, v)
	}
	if done, err := turn.Settle(q.t.Context(), s); err != nil || !done.Held {
		q.t.Fatalf("settle: %+v, %v", done, err)
	}
}

// bury pushes writes and makes dead letters of them, all in the same moment.
func (q operated) bury(resource, cause string, ids ...string) {
	q.t.Helper()
	for _, id := range ids {
		q.push(resource, id)
	}
	lane := resource
	if lane == "" {
		lane = "\x00" + ids[0]
	}
	q.settle(q.enter(lane, len(ids)), deferral.Verdict{Fate: deferral.Buried, Cause: cause})
}

func TestLookupSaysWhereAWriteIs(t *testing.T) {
	for _, shards := range []int{1, 7} {
		onEachServer(t, deferral.Config{Shards: shards}, func(t *testing.T, q operated) {
			before := time.Now().Add(-time.Minute)
			q.push("acc", "first")
			q.push("acc", "second")
			q.push("", "lone")
			q.pushLater("acc", "later", time.Hour)
			q.bury("old", "no such account", "dead")
			q.bury("", "no such thing", "lone dead")
			turn := q.enter("acc", 1)

			for _, tt := range []struct {
				id, resource string
				place        deferral.Place
				ahead        int
				attempts     int
				cause        string
			}{
				{"first", "acc", deferral.Running, 0, 1, ""},
				{"second", "acc", deferral.Waiting, 1, 0, ""},
				{"lone", "", deferral.Waiting, 0, 0, ""},
				{"later", "acc", deferral.Later, 0, 0, ""},
				{"dead", "old", deferral.Dead, 0, 1, "no such account"},
				{"lone dead", "", deferral.Dead, 0, 1, "no such thing"},
			} {
				byID, err := q.Lookup(t.Context(), tt.id)
				if err != nil {
					t.Fatalf("%s: %v", tt.id, err)
				}
				in, err := q.LookupIn(t.Context(), tt.resource, tt.id)
				if err != nil {
					t.Fatalf("%s: %v", tt.id, err)
				}
				for _, it := range []deferral.Item{byID, in} {
					if it.ID != tt.id || it.Resource != tt.resource || it.Place != tt.place || it.Ahead != tt.ahead ||
						it.Attempts != tt.attempts || it.Cause != tt.cause || it.Err != nil {
						t.Errorf("%s: %+v", tt.id, it)
					}
					if later := it.Place == deferral.Later; later != it.Due.After(time.Now()) || later != it.Pushed.IsZero() {
						t.Errorf("%s: due %v, pushed %v", tt.id, it.Due, it.Pushed)
					}
					if !it.Pushed.IsZero() && (it.Pushed.Before(before) || it.Age <= 0 || it.Age > time.Minute) {
						t.Errorf("%s: pushed %v, %v ago", tt.id, it.Pushed, it.Age)
					}
					if dead := it.Place == deferral.Dead; dead != !it.Buried.IsZero() || it.Buried.Before(it.Pushed) && dead {
						t.Errorf("%s: buried %v", tt.id, it.Buried)
					}
				}
			}
			if it, _ := q.Lookup(t.Context(), "first"); it.Kind != "k" || it.Meta["m"] != "v" || string(it.Payload) != "payload of first" {
				t.Errorf("the write is %+v", it.Write)
			}
			q.settle(turn, deferral.Verdict{Fate: deferral.Done})
			if it, err := q.Lookup(t.Context(), "first"); !errors.Is(err, deferral.ErrNotFound) {
				t.Errorf("after its end: %+v, %v", it, err)
			}
		})
	}
}

func TestLookupShowsWhyAWriteRests(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.push("acc", "w")
		q.settle(q.enter("acc", 1), deferral.Verdict{Fate: deferral.Failed, Rest: time.Hour, Cause: "the database is away"})
		if err := q.Pause(t.Context(), "acc", "maintenance"); err != nil {
			t.Fatal(err)
		}
		it, err := q.Lookup(t.Context(), "w")
		if err != nil || it.Place != deferral.Waiting || it.Attempts != 1 || it.Cause != "the database is away" || !it.Paused || it.Reason != "maintenance" {
			t.Errorf("%+v, %v", it, err)
		}
		if rest := it.Due.Sub(it.Pushed.Add(it.Age)); rest < 59*time.Minute || rest > time.Hour {
			t.Errorf("it rests for %v", rest)
		}
		if err := q.Resume(t.Context(), "acc"); err != nil {
			t.Fatal(err)
		}
	})
}

// Names that mean something to a glob pattern, or to the way keys are built.
var oddNames = []string{"*", "?", "a*c", "[abc]", "[^x]", `back\slash`, `\*`, "{0}", "}:write:", "lane:", "new\nline", "Ж ü", "a:b", "-", "]", "["}

func TestLookupFindsOddNamesAndNothingElse(t *testing.T) {
	onEachServer(t, deferral.Config{Name: "a?[b]*", Shards: 3}, func(t *testing.T, q operated) {
		for i, id := range oddNames {
			q.push(oddNames[len(oddNames)-1-i], id)
		}
		for i, id := range oddNames {
			it, err := q.Lookup(t.Context(), id)
			if err != nil || it.ID != id || it.Resource != oddNames[len(oddNames)-1-i] {
				t.Errorf("%q: %+v, %v", id, it, err)
			}
		}
		if it, err := q.Lookup(t.Context(), "abc"); !errors.Is(err, deferral.ErrNotFound) {
			t.Errorf("abc: %+v, %v", it, err)
		}
		for _, id := range oddNames {
			if err := q.Cancel(t.Context(), id); err != nil {
				t.Errorf("cancel %q: %v", id, err)
			}
		}
		if s, err := q.Stats(t.Context()); err != nil || s.Waiting != 0 {
			t.Errorf("left: %+v, %v", s, err)
		}
	})
}

func TestAnIDAloneIsRefusedWhenItIsAmbiguous(t *testing.T) {
	onEachServer(t, deferral.Config{Shards: 2}, func(t *testing.T, q operated) {
		for _, resource := range []string{"a", "b", "c"} {
			q.push(resource, "w")
		}
		if it, err := q.Lookup(t.Context(), "w"); !errors.Is(err, deferral.ErrAmbiguous) {
			t.Errorf("Lookup: %+v, %v", it, err)
		}
		if err := q.Cancel(t.Context(), "w"); !errors.Is(err, deferral.ErrAmbiguous) {
			t.Errorf("Cancel: %v", err)
		}
		for _, resource := range []string{"a", "b"} {
			if err := q.CancelIn(t.Context(), resource, "w"); err != nil {
				t.Error(err)
			}
		}
		if it, err := q.Lookup(t.Context(), "w"); err != nil || it.Resource != "c" {
			t.Errorf("Lookup of the last: %+v, %v", it, err)
		}
	})
}

func TestAQueueWhoseNameBeginsLikeOursIsLeftAlone(t *testing.T) {
	onEachServer(t, deferral.Config{Name: "a:0", Shards: 2}, func(t *testing.T, longer operated) {
		longer.push("acc", "w")
		q, err := deferral.New(longer.rdb, deferral.Config{Name: "a", Shards: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Cancel(t.Context(), "w"); !errors.Is(err, deferral.ErrNotFound) {
			t.Errorf("Cancel: %v", err)
		}
		if it, err := longer.Lookup(t.Context(), "w"); err != nil || it.Resource != "acc" {
			t.Errorf("%+v, %v", it, err)
		}
	})
}

func TestCancelTakesOutWhatHasNotStarted(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.push("acc", "running")
		q.push("acc", "waiting")
		q.pushLater("acc", "later", time.Hour)
		q.push("", "lone")
		q.bury("old", "", "dead")
		turn := q.enter("acc", 1)
		for id, want := range map[string]error{
			"running": deferral.ErrRunning, "waiting": nil, "later": nil, "lone": nil, "dead": deferral.ErrDead, "none": deferral.ErrNotFound,
		} {
			if err := q.Cancel(t.Context(), id); !errors.Is(err, want) {
				t.Errorf("cancel %s: %v, want %v", id, err, want)
			}
		}
		q.settle(turn, deferral.Verdict{Fate: deferral.Return})
		if err := q.Cancel(t.Context(), "running"); err != nil {
			t.Errorf("cancel a write that runs no longer: %v", err)
		}
		s, err := q.Stats(t.Context())
		if want := (deferral.Counts{Dead: 1}); err != nil || s.Counts != want {
			t.Errorf("left: %+v, %v", s, err)
		}
	})
}

func TestTheNextWriteIsDueWhenTheHeadIsCancelled(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.push("acc", "rests")
		q.push("acc", "next")
		q.settle(q.enter("acc", 1), deferral.Verdict{Fate: deferral.Failed, Rest: time.Hour})
		if due, err := q.Due(t.Context(), 0, 1, 0, 0); err != nil || len(due.Lanes) != 0 {
			t.Fatalf("a resting lane is due: %+v, %v", due, err)
		}
		if err := q.CancelIn(t.Context(), "acc", "rests"); err != nil {
			t.Fatal(err)
		}
		if due, err := q.Due(t.Context(), 0, 1, 0, 0); err != nil || len(due.Lanes) != 1 {
			t.Errorf("due: %+v, %v", due, err)
		}
	})
}

func TestACancelWhoseReplyIsLostSaysSo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		q := operate(t, p.Client(t), deferral.Config{})
		q.push("acc", "w-once")
		if err := q.CancelIn(t.Context(), "acc", "none"); !errors.Is(err, deferral.ErrNotFound) { // Redis knows the script now
			t.Fatal(err)
		}
		p.DropReply("w-once", 1)
		if err := q.CancelIn(t.Context(), "acc", "w-once"); !errors.Is(err, deferral.ErrUnclear) || !errors.Is(err, deferral.ErrNotFound) {
			t.Errorf("%v", err)
		}
	})
}

func TestLookupInTakesOneRoundTrip(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		q := operate(t, p.Client(t), deferral.Config{})
		q.push("acc", "w")
		look := func() error { _, err := q.LookupIn(t.Context(), "acc", "w"); return err }
		for name, call := range map[string]func() error{"LookupIn": look, "CancelIn": func() error { return q.CancelIn(t.Context(), "acc", "w") }} {
			s.FlushScripts(t)
			if err := look(); err != nil { // Redis knows the script now
				t.Fatal(err)
			}
			if name == "CancelIn" {
				_ = q.CancelIn(t.Context(), "acc", "none")
			}
			p.Reset()
			if err := call(); err != nil || p.RoundTrips() != 1 {
				t.Errorf("%s: %d round trips, %v", name, p.RoundTrips(), err)
			}
			q.push("acc", "w")
		}
	})
}

func TestWhoOnlyLooksLeavesNothingBehind(t *testing.T) {
	onEachServer(t, deferral.Config{Shards: 4}, func(t *testing.T, q operated) {
		if _, err := q.Lookup(t.Context(), "w"); !errors.Is(err, deferral.ErrNotFound) {
			t.Error(err)
		}
		if s, err := q.Stats(t.Context()); err != nil || s.Counts != (deferral.Counts{}) || len(s.Shards) != 4 {
			t.Errorf("%+v, %v", s, err)
		}
		if keys := q.rdb.Keys(t.Context(), "*").Val(); len(keys) != 0 {
			t.Errorf("left behind: %q", keys)
		}
	})
}

func TestAnotherNumberOfShardsIsRefused(t *testing.T) {
	onEachServer(t, deferral.Config{Shards: 2}, func(t *testing.T, q operated) {
		q.push("acc", "w")
		wrong := operate(t, q.rdb, deferral.Config{Shards: 3})
		_, byID := wrong.Lookup(t.Context(), "w")
		_, stats := wrong.Stats(t.Context())
		_, revived := wrong.ReviveAll(t.Context())
		for name, err := range map[string]error{
			"Lookup": byID, "Stats": stats, "ReviveAll": revived, "Cancel": wrong.Cancel(t.Context(), "w"),
			"Pause": wrong.Pause(t.Context(), "acc", ""), "Revive": wrong.Revive(t.Context(), "acc", "w"),
		} {
			if !errors.Is(err, deferral.ErrShards) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestNamesThatCannotBeAreRefused(t *testing.T) {
	q := operate(t, redistest.Mini(t).Client(t), deferral.Config{})
	for _, tt := range []struct{ resource, id string }{{"", ""}, {"a\x00b", "w"}, {"a", "\xff"}, {"a", fmt.Sprintf("%300d", 1)}} {
		_, err := q.LookupIn(t.Context(), tt.resource, tt.id)
		for name, err := range map[string]error{
			"LookupIn": err, "CancelIn": q.CancelIn(t.Context(), tt.resource, tt.id),
			"Revive": q.Revive(t.Context(), tt.resource, tt.id), "Forget": q.Forget(t.Context(), tt.resource, tt.id),
		} {
			if !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("%s(%q, %q): %v", name, tt.resource, tt.id, err)
			}
		}
	}
}
