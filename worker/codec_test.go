package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

type plain struct {
	Text  string
	Small int8
	Big   *big.Int
}

func TestJSONRefusesWhatItDoesNotFullyUnderstand(t *testing.T) {
	for _, data := range []string{
		`{"Text":"a","Other":1}`, `{"Text":"a"} {}`, `{"Text":"a"}x`, `{"Text":"a"`, ``, ` `,
		`{"Text":1}`, `{"Small":300}`, `{"Big":"secret"}`, `[]`,
	} {
		if err := worker.JSON.Unmarshal([]byte(data), &plain{}); err == nil {
			t.Errorf("%q was understood", data)
		}
	}
	var v plain
	if err := worker.JSON.Unmarshal([]byte("{\"Text\":\"a\",\"Small\":3,\"Big\":7}\n"), &v); err != nil || v.Text != "a" || v.Small != 3 || v.Big.Int64() != 7 {
		t.Errorf("%+v, %v", v, err)
	}
}

// The errors of encoding/json quote values, and these errors are logged.
func TestJSONsErrorsDoNotTellValues(t *testing.T) {
	for _, data := range []string{`{"Small":4711}`, `{"Big":"4711x"}`, `{"Text":4711}`, `{"Text":"4711`, `{"Small":"4711"}`} {
		err := worker.JSON.Unmarshal([]byte(data), &plain{})
		if err == nil || strings.Contains(err.Error(), "4711") {
			t.Errorf("%q: %v", data, err)
		}
	}
	err := worker.JSON.Unmarshal([]byte(`{"Small":4711}`), &plain{})
	if err == nil || !strings.Contains(err.Error(), "Small") {
		t.Errorf("which field is it? %v", err)
	}
	err = worker.JSON.Unmarshal([]byte(`{"Newer":"4711"}`), &plain{})
	if err == nil || strings.Contains(err.Error(), "4711") || !strings.Contains(err.Error(), "Newer") {
		t.Errorf("which field is it? %v", err)
	}
}

func TestJSONRefusesWhatItWouldChange(t *testing.T) {
	for _, text := range []string{"\xff", "a\xc3", `\` + "\xff", `\\` + "\xff"} {
		if b, err := worker.JSON.Marshal(plain{Text: text}); err == nil {
			t.Errorf("%q became %s", text, b)
		}
	}
	for _, text := range []string{`\ufffd`, `\\ufffd`, "\ufffd", `\\\ufffd`, `"\ufffd`, "a\u2028<>&"} {
		b, err := worker.JSON.Marshal(plain{Text: text})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var v plain
		if err := worker.JSON.Unmarshal(b, &v); err != nil || v.Text != text {
			t.Errorf("%q became %q, %v", text, v.Text, err)
		}
	}
}

func FuzzJSONGivesBackWhatItTook(f *testing.F) {
	for _, s := range []string{"", "a", `\ufffd`, "\xff", "\ufffd", `\\` + "\xff", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := worker.JSON.Marshal(plain{Text: text})
		if err != nil {
			return
		}
		var v plain
		if err := worker.JSON.Unmarshal(b, &v); err != nil || v.Text != text {
			t.Errorf("%q became %q, %v", text, v.Text, err)
		}
	})
}

// version2 is how the next release sees an entry.
type version2 struct {
	To, ID, Text string
	Added        int
}

func TestWriteThatCannotBeReadHereWaitsForAProcessThatCan(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var j journal
		var v record
		older := newWorker(t, rdb, worker.Config{MaxAttempts: 1, Logger: j.logger(), Observe: v.observe})
		var b book
		x := wrap(t, older, b.write)
		newer := newWorker(t, rdb, worker.Config{})
		read := func(ctx context.Context, e version2) error { return b.write(ctx, entry{To: e.To, ID: e.ID}) }
		kind := func(name string) worker.Kind[version2] {
			return worker.Kind[version2]{
				Name: name, Resource: func(e version2) string { return e.To },
				IdempotencyKey: func(_ context.Context, e version2) string { return e.ID },
			}
		}
		known, err1 := worker.Wrap(newer, read, kind("entry"))
		unknown, err2 := worker.Wrap(newer, read, kind("novelty"))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		for _, x := range []*worker.Writer[version2]{unknown, known} {
			to := map[*worker.Writer[version2]]string{unknown: "kind", known: "field"}[x]
			if _, err := x.Push(t.Context(), version2{To: to, ID: "new", Added: 1}, 0); err != nil {
				t.Fatal(err)
			}
		}
		push(t, x, entry{To: "kind", ID: "old"}, entry{To: "field", ID: "old"}, entry{To: "envelope", ID: "new"})
		if err := rdb.SetRange(t.Context(), "{w:0}:write:envelope\x00new", 0, "\x07").Err(); err != nil {
			t.Fatal(err)
		}

		stop := start(t, older)
		time.Sleep(30*time.Second + 500*time.Millisecond)
		b.reads(t)
		for to, why := range map[string]string{"kind": "novelty", "field": "Added"} {
			if it := look(t, older, entry{To: to, ID: "new"}); it.Place != deferral.Waiting || it.Attempts != 0 || !strings.Contains(it.Cause, why) {
				t.Errorf("%s: %+v", to, it)
			}
		}
		if n := j.count("cannot be run by this process"); n != 3 {
			t.Errorf("said %d times for 3 writes in half a minute:\n%v", n, &j)
		}
		if e := v.find("new", worker.EventReturned); e.Err == nil || e.Rest == 0 {
			t.Errorf("%+v", e)
		}
		start(t, newer)
		until(t, "the newer process", func() bool { return len(b.list()) == 4 })
		stop()
		got := b.list()
		slices.Sort(got)
		if !slices.Equal(got, []string{"new", "new", "old", "old"}) {
			t.Errorf("written: %v", got)
		}
		if it := look(t, older, entry{To: "envelope", ID: "new"}); it.Attempts != 0 || !errors.Is(it.Err, deferral.ErrEnvelope) {
			t.Errorf("%+v", it)
		}
		redistest.Audit(t, rdb, "w")
	})
}

type failingCodec struct{ marshal, unmarshal error }

func (c failingCodec) Marshal(v any) ([]byte, error) {
	if c.marshal != nil {
		return nil, c.marshal
	}
	return json.Marshal(v)
}

func (c failingCodec) Unmarshal(b []byte, v any) error {
	if c.unmarshal == errPanic { //nolint:errorlint // it is only a sign
		panic("codec")
	}
	if c.unmarshal != nil {
		return c.unmarshal
	}
	return json.Unmarshal(b, v)
}

var errPanic = errors.New("panic, please")

func TestCodecThatFailsOrPanicsLosesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, c := range []failingCodec{{unmarshal: errWrite}, {unmarshal: errPanic}} {
			w := newWorker(t, s.Client(t), worker.Config{MaxAttempts: 1})
			k := kindOf("entry")
			k.Codec = c
			x, err := worker.Wrap(w, func(context.Context, entry) error { return nil }, k)
			if err != nil {
				t.Fatal(err)
			}
			e := entry{To: c.unmarshal.Error(), ID: "1"}
			push(t, x, e)
			once(t, w, 0)
			if it := look(t, w, e); it.Place != deferral.Waiting || it.Attempts != 0 || it.Cause == "" {
				t.Errorf("%+v", it)
			}
		}
	})
}

// A nil of an interface type has no type to assert: the function was never
// called, and the write failed with a panic.
func TestNilIsAValueToo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		calls := 0
		x, err := worker.Wrap(w, func(_ context.Context, v any) error {
			calls++
			return nil
		}, worker.Kind[any]{Name: "any", Resource: func(any) string { return "a" }})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := x.Do(t.Context(), nil); err != nil || !out.Ran {
			t.Errorf("%+v, %v", out, err)
		}
		if _, err := x.Push(t.Context(), nil, 0); err != nil {
			t.Error(err)
		}
		once(t, w, 1)
		if calls != 2 {
			t.Errorf("%d calls", calls)
		}
	})
}
