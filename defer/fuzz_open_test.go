package deferral_test

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	deferral "github.com/deferlock/deferlock/defer"
)

// FuzzOpen reads arbitrary bytes as an envelope: they are refused, and nothing
// is set, or what was read is what comes back from an envelope made of it.
func FuzzOpen(f *testing.F) {
	for _, w := range []deferral.Write{
		{},
		{Kind: "kind", Payload: []byte("payload")},
		{Payload: bytes.Repeat([]byte{0}, 1000), Meta: map[string]string{"": "", "k": "v", "\xff": "\x00"}},
	} {
		f.Add(deferral.SealEnvelope(&w))
	}
	for _, raw := range []string{
		"", "\x01", "\x01\x00\x00\x00\x00", "\x01\x00\x00\x00\x00\x80", "\x01\x00\x00\x00\x00\x7f", "\x01\x00\x00\x00\x01\x00\x00",
		"\x01\x00\x00\x00\x04\x01k\x01v\x04kindpayload", "\x01\x00\x00\x00\x08\x01k\x01v\x01k\x01w\x00", "\x01\xff\xff\xff\xff\x00",
		"\x01\x00\x00\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "\x01\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"\x02\x00\x00\x00\x00\x00", "\x00", "\xff",
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		var w, again deferral.Write
		err := deferral.OpenEnvelope(raw, &w)
		if !bytes.Equal(raw, before) {
			t.Fatal("what was read was changed")
		}
		if err != nil {
			if !errors.Is(err, deferral.ErrEnvelope) || w.Kind != "" || w.Payload != nil || w.Meta != nil {
				t.Fatalf("refused with %v, but read as %+v", err, w)
			}
			return
		}
		if len(w.Kind)+len(w.Payload) > len(raw) {
			t.Fatalf("%d bytes were read as %+v", len(raw), w)
		}
		if err := deferral.OpenEnvelope(deferral.SealEnvelope(&w), &again); err != nil {
			t.Fatal(err)
		}
		if again.Kind != w.Kind || !bytes.Equal(again.Payload, w.Payload) || !maps.Equal(again.Meta, w.Meta) {
			t.Errorf("%+v came back as %+v", w, again)
		}
	})
}
