package deferral_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// FuzzEnvelope stores arbitrary bytes in the place of a write, which must be
// read or refused; and writes with arbitrary contents, which must come back.
func FuzzEnvelope(f *testing.F) {
	b := newBench(f, redistest.Mini(f), deferral.Config{})
	f.Add([]byte{}, "", []byte{}, "", "")
	f.Add([]byte{1}, "kind", []byte("payload"), "key", "value")
	f.Add([]byte("\x01\x00\x00\x00\x00\x00payload"), "\xff", []byte{0}, "\x00", "\xff")
	f.Add([]byte("\x01\x00\x00\x00\x04\x01k\x01v\x04kindpayload"), "k", []byte("\x01\x00\x00\x00\x00\x00"), "k", "")
	f.Add([]byte("\x01\xff\xff\xff\xff\x00"), "", []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "", "")
	f.Add([]byte("\x01\x00\x00\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"), "", []byte{}, "", "")
	f.Add([]byte("\x02\x04kindpayload"), "", []byte{}, "", "")
	f.Add([]byte("\x02\x05kind"), "", []byte{}, "", "")
	f.Add([]byte("\x03\x00\x00\x00\x00\x00"), "", []byte{}, "", "")
	f.Fuzz(func(t *testing.T, raw []byte, kind string, payload []byte, key, value string) {
		b.t = t
		b.push("r", "raw")
		if err := b.rdb.Set(t.Context(), b.key("write:r\x00raw"), raw, 0).Err(); err != nil {
			t.Fatal(err)
		}
		turn := b.enter("r", 1)
		d := turn.Deliveries()[0]
		if d.ID != "raw" || d.Resource != "r" {
			t.Errorf("%q on %q", d.ID, d.Resource)
		}
		readable := len(raw) >= 6 && raw[0] == 1 || len(raw) >= 2 && raw[0] == 2
		if d.Err == nil && !readable || d.Err != nil && (!errors.Is(d.Err, deferral.ErrEnvelope) || d.Payload != nil || d.Kind != "") {
			t.Errorf("%q was read as kind %q, payload %q, %v", raw, d.Kind, d.Payload, d.Err)
		}
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)

		w := deferral.Write{ID: "w", Resource: "r", Kind: kind, Payload: payload, Meta: map[string]string{key: value}}
		switch _, err := b.q.Push(t.Context(), w); {
		case errors.Is(err, deferral.ErrInvalid) && (len(kind) > 128 || len(key)+len(value) > 64<<10 || len(payload) > 1<<20):
			return
		case err != nil:
			t.Fatal(err)
		}
		w.Meta = nil
		if _, err := b.q.Push(t.Context(), w); err != nil {
			t.Errorf("the same again: %v", err)
		}
		w.Payload = append(bytes.Clone(payload), 0)
		if _, err := b.q.Push(t.Context(), w); !errors.Is(err, deferral.ErrMismatch) && len(payload) < 1<<20 {
			t.Errorf("another payload: %v", err)
		}
		turn = b.enter("r", 1)
		d = turn.Deliveries()[0]
		if v, there := d.Meta[key]; d.Err != nil || d.Kind != kind || !bytes.Equal(d.Payload, payload) || v != value || !there {
			t.Errorf("%+v became %+v", w, d.Write)
		}
		b.settle(turn, 0, verdict(turn, deferral.Done, 0)...)
		b.audit()
	})
}

// FuzzResource pushes and admits under arbitrary names: each is refused and
// nothing stored, or delivered back exactly.
func FuzzResource(f *testing.F) {
	b := newBench(f, redistest.Mini(f), deferral.Config{})
	for _, name := range []string{
		"", "a", "{b}", "}:lock:", "{n:0}:lane:r", "\x00", "a\x00b", "\xff", "é", strings.Repeat("x", 257), strings.Repeat("x", 1025),
		"\r\n*1\r\n$8\r\nFLUSHALL\r\n", " ", "lock:r", "%d%s%z", "1", "-inf", "(1", "[a",
	} {
		f.Add(name, "id")
		f.Add("r", name)
		f.Add(name, name)
	}
	f.Fuzz(func(t *testing.T, resource, id string) {
		b.t = t
		valid := func(s string, most int) bool {
			return len(s) <= most && utf8.ValidString(s) && !strings.Contains(s, "\x00")
		}
		before := b.contents()
		w := deferral.Write{Resource: resource, ID: id, Payload: []byte(resource + id)}
		got, err := b.q.Push(t.Context(), w)
		if !valid(resource, 1024) || !valid(id, 256) {
			if !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("push: %v", err)
			}
			if _, err := b.q.Admit(t.Context(), w); !errors.Is(err, deferral.ErrInvalid) {
				t.Errorf("admit: %v", err)
			}
			wantSame(t, before, b.contents())
			return
		}
		if err != nil || id != "" && got != id {
			t.Fatalf("push: %q, %v", got, err)
		}
		for k := range b.contents() {
			if !strings.HasPrefix(k, "{n:0}:") {
				t.Errorf("key %q", k)
			}
		}
		w.ID = got
		if a, err := b.q.Admit(t.Context(), w); err != nil || a.Why != deferral.Already {
			t.Errorf("admit what is there: %+v, %v", a, err)
		}
		ds, err := b.q.Pop(t.Context(), 10, 0)
		if err != nil || len(ds) != 1 {
			t.Fatalf("popped %v, %v", ds, err)
		}
		if d := ds[0]; d.Resource != resource || d.ID != got || string(d.Payload) != resource+id {
			t.Errorf("pushed %q on %q, popped %q on %q", got, resource, d.ID, d.Resource)
		}
		b.ack(ds...)
		turn := b.granted(resource, got)
		if turn.Resource() != resource {
			t.Errorf("the turn is for %q", turn.Resource())
		}
		b.settle(turn, 0)
		b.audit()
	})
}
