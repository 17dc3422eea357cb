package deferral

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// An envelope is a write as it is stored:
//
//	1 (a byte) | length of the metadata (4 bytes) | metadata | kind | payload
//	2 (a byte) | kind | payload
//
// where metadata is a sequence of strings, key and value in turn, and a string,
// as the kind is one, is its length (uvarint) and its bytes. The payload is
// raw. Kind and payload together are what must be the same when an ID comes
// again (place.lua); the metadata belongs to the call, and most have none.
const (
	withMeta    = 1
	withoutMeta = 2
)

// ErrEnvelope is wrapped by [Delivery.Err] when a stored write cannot be read:
// a newer release wrote it, or something else did.
var ErrEnvelope = errors.New("deferral: unreadable envelope")

func sealEnvelope(w *Write) []byte {
	size := 5 + 10 + len(w.Kind) + len(w.Payload)
	for k, v := range w.Meta {
		size += 20 + len(k) + len(v)
	}
	b := make([]byte, 1, size)
	b[0] = withoutMeta
	if len(w.Meta) > 0 {
		b[0] = withMeta
		b = append(b, 0, 0, 0, 0)
		for _, k := range slices.Sorted(maps.Keys(w.Meta)) {
			b = appendString(b, k)
			b = appendString(b, w.Meta[k])
		}
		binary.BigEndian.PutUint32(b[1:], uint32(len(b)-5))
	}
	b = appendString(b, w.Kind)
	return append(b, w.Payload...)
}

func openEnvelope(b []byte, w *Write) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: it is empty", ErrEnvelope)
	}
	var pairs map[string]string
	rest := b[1:]
	switch b[0] {
	case withoutMeta:
	case withMeta:
		var err error
		if pairs, rest, err = openMeta(rest); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: version %d", ErrEnvelope, b[0])
	}
	kind, rest, ok := cutString(rest)
	if !ok {
		return fmt.Errorf("%w: kind is cut off", ErrEnvelope)
	}
	w.Meta, w.Kind, w.Payload = pairs, kind, rest
	return nil
}

func openMeta(b []byte) (pairs map[string]string, rest []byte, _ error) {
	if len(b) < 4 {
		return nil, nil, fmt.Errorf("%w: too short", ErrEnvelope)
	}
	n := binary.BigEndian.Uint32(b)
	rest = b[4:]
	if uint64(n) > uint64(len(rest)) {
		return nil, nil, fmt.Errorf("%w: metadata is cut off", ErrEnvelope)
	}
	meta, rest := rest[:n], rest[n:]
	for len(meta) > 0 {
		var k, v string
		var ok1, ok2 bool
		k, meta, ok1 = cutString(meta)
		v, meta, ok2 = cutString(meta)
		if !ok1 || !ok2 {
			return nil, nil, fmt.Errorf("%w: metadata is cut off", ErrEnvelope)
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[k] = v
	}
	return pairs, rest, nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, false
	}
	end := size + int(n)
	return string(b[size:end]), b[end:], true
}
