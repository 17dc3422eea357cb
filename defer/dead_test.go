package deferral_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

func (q operated) dead() []deferral.Item {
	q.t.Helper()
	var items []deferral.Item
	for it, err := range q.Dead(q.t.Context()) {
		if err != nil {
			q.t.Fatal(err)
		}
		items = append(items, it)
	}
	return items
}

func ids(items []deferral.Item) []string {
	var out []string
	for _, it := range items {
		out = append(out, it.ID)
	}
	return out
}

// numbered are n IDs in their order, which is that of their bytes too.
func numbered(prefix string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%s%04d", prefix, i))
	}
	return out
}

func TestDeadLettersComeOldestFirst(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		var want []string
		for i := range 3 {
			// More than a step in the same moment, then some in moments of their own.
			some := numbered(fmt.Sprintf("%d-many-", i), 130)
			q.bury("acc", "no such account", some...)
			want = append(want, some...)
			for j := range 5 {
				one := fmt.Sprintf("%d-one-%d", i, j)
				q.bury("", "no such thing", one)
				want = append(want, one)
			}
		}
		letters := q.dead()
		if !slices.Equal(ids(letters), want) {
			t.Errorf("%d letters, want %d", len(letters), len(want))
		}
		l := letters[0]
		if l.Place != deferral.Dead || l.Resource != "acc" || l.Kind != "k" || string(l.Payload) != "payload of 0-many-0000" || l.Meta["m"] != "v" ||
			l.Attempts != 1 || l.Cause != "no such account" || l.Err != nil || l.Buried.Before(l.Pushed) || l.Age <= 0 || l.Age > time.Minute {
			t.Errorf("%+v", l)
		}
	})
}

func TestDeadLettersMayBeRevivedAndForgottenOnTheWay(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		want := numbered("w", 250)
		q.bury("acc", "", want...)
		var got []string
		for it, err := range q.Dead(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, it.ID)
			end := q.Revive
			if len(got)%2 == 0 {
				end = q.Forget
			}
			if err := end(t.Context(), it.Resource, it.ID); err != nil {
				t.Fatal(err)
			}
			if len(got) == 1 { // what dies from now on is for the next call
				q.bury("other", "", numbered("new", 10)...)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d letters, want %d", len(got), len(want))
		}
		if s, err := q.Stats(t.Context()); err != nil || s.Waiting != 125 || s.Dead != 10 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

func TestDeadLettersOfAnySizeAreRead(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		payload := bytes.Repeat([]byte("x"), 1<<20)
		for i := range 10 {
			if _, err := q.Push(t.Context(), deferral.Write{ID: fmt.Sprint(i), Resource: "acc", Payload: payload}); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 { // a claim is limited in bytes too
			if turn, err := q.Enter(t.Context(), "acc", 10, 0); err != nil {
				t.Fatal(err)
			} else if turn != nil {
				q.settle(turn, deferral.Verdict{Fate: deferral.Buried})
			}
		}
		letters := q.dead()
		for _, l := range letters {
			if !bytes.Equal(l.Payload, payload) {
				t.Errorf("%s has %d bytes", l.ID, len(l.Payload))
			}
		}
		if len(letters) != 10 {
			t.Errorf("%d letters", len(letters))
		}
	})
}

func TestARevivedWriteJoinsTheEndOfItsLane(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.bury("acc", "no such account", "dead")
		q.push("acc", "newer")
		if err := q.Revive(t.Context(), "acc", "dead"); err != nil {
			t.Fatal(err)
		}
		it, err := q.LookupIn(t.Context(), "acc", "dead")
		if err != nil || it.Place != deferral.Waiting || it.Ahead != 1 || it.Attempts != 0 || it.Cause != "" {
			t.Errorf("%+v, %v", it, err)
		}
		turn := q.enter("acc", 2)
		if d := turn.Deliveries(); len(d) != 2 || d[1].ID != "dead" || d[1].Attempt != 1 || d[1].Stamp() <= d[0].Stamp() {
			t.Errorf("%+v", d)
		}
		q.settle(turn, deferral.Verdict{Fate: deferral.Done})
		for name, err := range map[string]error{
			"Revive": q.Revive(t.Context(), "acc", "dead"), "Forget": q.Forget(t.Context(), "acc", "dead"),
		} {
			if !errors.Is(err, deferral.ErrNotFound) {
				t.Errorf("%s of a write that is done: %v", name, err)
			}
		}
	})
}

func TestReviveAllAndReviveResource(t *testing.T) {
	onEachServer(t, deferral.Config{Shards: 3}, func(t *testing.T, q operated) {
		q.bury("a", "", numbered("a", 120)...)
		q.bury("b", "", numbered("b", 3)...)
		q.bury("", "", "lone")
		if n, err := q.ReviveResource(t.Context(), "b"); err != nil || n != 3 {
			t.Errorf("ReviveResource: %d, %v", n, err)
		}
		if s, err := q.Stats(t.Context()); err != nil || s.Waiting != 3 || s.Dead != 121 {
			t.Errorf("%+v, %v", s, err)
		}
		if n, err := q.ReviveAll(t.Context()); err != nil || n != 121 {
			t.Errorf("ReviveAll: %d, %v", n, err)
		}
		var order []string
		turn := q.enter("a", 200)
		for _, d := range turn.Deliveries() {
			order = append(order, d.ID)
		}
		if !slices.Equal(order, numbered("a", 120)) {
			t.Errorf("revived in the order %q", order)
		}
		q.settle(turn, deferral.Verdict{Fate: deferral.Done})
		if n, err := q.ReviveAll(t.Context()); err != nil || n != 0 {
			t.Errorf("ReviveAll of none: %d, %v", n, err)
		}
		if _, err := q.ReviveResource(t.Context(), ""); !errors.Is(err, deferral.ErrInvalid) {
			t.Errorf("ReviveResource of nothing: %v", err)
		}
	})
}

func TestADeadLetterWithoutAPayloadIsShownAndNotRevived(t *testing.T) {
	onEachServer(t, deferral.Config{}, func(t *testing.T, q operated) {
		q.bury("acc", "", "torn", "whole")
		q.rdb.Del(t.Context(), "{accounts:0}:write:acc\x00torn")
		letters := q.dead()
		if !slices.Equal(ids(letters), []string{"torn", "whole"}) || !errors.Is(letters[0].Err, deferral.ErrEnvelope) || letters[1].Err != nil {
			t.Errorf("%+v", letters)
		}
		if err := q.Revive(t.Context(), "acc", "torn"); !errors.Is(err, deferral.ErrNotFound) {
			t.Error(err)
		}
		if letters := q.dead(); !slices.Equal(ids(letters), []string{"whole"}) {
			t.Errorf("left: %+v", letters)
		}
	})
}

func TestARevivalWhoseReplyIsLostIsCountedOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		q := operate(t, p.Client(t), deferral.Config{})
		q.bury("acc", "", "w1", "w2", "w3")
		if err := q.Revive(t.Context(), "acc", "none"); !errors.Is(err, deferral.ErrNotFound) { // Redis knows the script now
			t.Fatal(err)
		}
		p.DropReply("write:acc\x00w2", 1)
		if n, err := q.ReviveAll(t.Context()); err != nil || n != 3 {
			t.Errorf("%d, %v", n, err)
		}
		if s, err := q.Stats(t.Context()); err != nil || s.Waiting != 3 || s.Dead != 0 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
