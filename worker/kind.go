package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"

	deferral "github.com/deferlock/deferlock/defer"
)

// Kind describes one kind of write.
type Kind[T any] struct {
	// Name is stored with the write, so that the right function runs it, in
	// whatever process. Required, unique in the worker, at most 128 bytes.
	Name string

	// Resource names what must not be written to by two at once. Required; an
	// empty result is an error. Use [Alone] for writes that need no lock.
	Resource func(T) string

	// IdempotencyKey names one intended write on its resource, so that Do can be
	// called again for it. It is not the resource. Default: a new UUID for
	// every call.
	IdempotencyKey func(context.Context, T) string

	// Codec makes bytes of a value and back. Default: [JSON].
	Codec Codec
}

// alone is a resource that no user can name, not even one who reads this: where
// resources come from outside, a known name would be a way round the lock.
var alone = "\x00" + uuid.NewString()

// Alone is the Resource of a [Kind] whose writes need no lock: each stands in a
// lane of its own.
func Alone[T any](T) string { return alone }

// Codec makes bytes of a value and back. Unmarshal must refuse what it does not
// fully understand: a write that it misread would be done wrongly, one that it
// refuses waits for a process that understands it, and the error, which is
// logged, should not have values in it. A codec may encrypt.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

// JSON is the default [Codec]. It is strict: it refuses fields that the type
// does not have, anything behind the value, and strings that are not UTF-8,
// which JSON would change without a word.
var JSON Codec = strictJSON{}

type strictJSON struct{}

// Marshal encodes v.
func (strictJSON) Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if replaced(b) {
		return nil, errors.New("a string is not UTF-8")
	}
	return b, nil
}

// replaced tells whether json.Marshal has put \ufffd in the place of bytes that
// are not UTF-8. A real U+FFFD it writes as it is.
func replaced(b []byte) bool {
	const mark = `\ufffd`
	for {
		i := bytes.Index(b, []byte(mark))
		if i < 0 {
			return false
		}
		slashes := 0
		for i-slashes > 0 && b[i-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return true
		}
		b = b[i+len(mark):]
	}
}

// Unmarshal decodes data into v.
func (strictJSON) Unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return discreet(err, data, v)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the value")
	}
	return nil
}

// discreet says what is wrong with data without its values: the error will be
// logged. Names of fields are no values.
func discreet(err error, data []byte, v any) error {
	var fit *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &fit):
		return fmt.Errorf("field %q, at byte %d, does not fit %v", fit.Field, fit.Offset, fit.Type)
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return err
	case json.Unmarshal(data, v) == nil:
		return err // nothing is wrong but a field that is not known
	}
	return fmt.Errorf("an UnmarshalJSON or UnmarshalText in %T refused its part", v)
}

// kind is a Kind without its type.
type kind struct {
	name   string
	batch  bool // run takes more than one value
	decode func([]byte) (any, error)
	run    func(context.Context, []any) error
}

// Writer submits writes of one kind.
type Writer[T any] struct {
	worker *Worker
	spec   Kind[T]
	kind   *kind
}

// Wrap makes a Writer of a function that writes one value. The function's
// context ends when its lock can no longer be relied on, with [lock.ErrLost] as
// its cause; [FromContext] tells it which write it is doing.
func Wrap[T any](w *Worker, write func(context.Context, T) error, k Kind[T]) (*Writer[T], error) {
	if write == nil {
		return nil, fmt.Errorf("worker: Wrap: kind %q has no function", k.Name)
	}
	return register(w, k, false, func(ctx context.Context, vs []any) error {
		v, _ := vs[0].(T) // a nil that T, an interface, may be has no type to assert
		return write(ctx, v)
	})
}

// WrapBatch is Wrap for a function that writes several values of one resource
// at once, oldest first. It should do so in one transaction. When it fails, the
// values are tried again one by one, so that one bad write does not bury its
// neighbours; if some of them did take effect, it says so with [Applied].
func WrapBatch[T any](w *Worker, write func(context.Context, []T) error, k Kind[T]) (*Writer[T], error) {
	if write == nil {
		return nil, fmt.Errorf("worker: WrapBatch: kind %q has no function", k.Name)
	}
	return register(w, k, true, func(ctx context.Context, vs []any) error {
		ts := make([]T, len(vs))
		for i, v := range vs {
			ts[i], _ = v.(T)
		}
		return write(ctx, ts)
	})
}

func register[T any](w *Worker, k Kind[T], batch bool, run func(context.Context, []any) error) (*Writer[T], error) {
	switch {
	case w == nil:
		return nil, errors.New("worker: Wrap needs a worker")
	case k.Name == "" || len(k.Name) > 128:
		return nil, fmt.Errorf("worker: Kind.Name has %d bytes: want 1 to 128", len(k.Name))
	case k.Resource == nil:
		return nil, fmt.Errorf("worker: Kind.Resource of %q is missing", k.Name)
	}
	if k.Codec == nil {
		k.Codec = JSON
	}
	kd := &kind{name: k.Name, batch: batch, run: run, decode: func(b []byte) (any, error) {
		var v T
		err := k.Codec.Unmarshal(b, &v)
		return v, err
	}}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kinds[k.Name] != nil {
		return nil, fmt.Errorf("worker: Kind.Name %q is used twice", k.Name)
	}
	w.kinds[k.Name] = kd
	return &Writer[T]{worker: w, spec: k, kind: kd}, nil
}

func (w *Worker) kind(name string) *kind {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.kinds[name]
}

// write makes the deferred form of v. It asks nobody.
func (x *Writer[T]) write(ctx context.Context, v T) (deferral.Write, error) {
	wr := deferral.Write{Kind: x.spec.Name, Resource: x.spec.Resource(v)}
	switch wr.Resource {
	case "":
		return wr, fmt.Errorf("worker: Kind.Resource of %q returned nothing", x.spec.Name)
	case alone:
		wr.Resource = ""
	}
	if x.spec.IdempotencyKey == nil {
		wr.ID = uuid.NewString()
	} else if wr.ID = x.spec.IdempotencyKey(ctx, v); wr.ID == "" {
		return wr, fmt.Errorf("worker: Kind.IdempotencyKey of %q returned nothing", x.spec.Name)
	}
	var err error
	if wr.Payload, err = x.spec.Codec.Marshal(v); err != nil {
		return wr, fmt.Errorf("worker: encode a %q: %w", x.spec.Name, err)
	}
	if carry := x.worker.cfg.Carry; carry != nil {
		wr.Meta = carry(ctx)
	}
	return wr, nil
}
