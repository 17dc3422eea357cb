package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

// entry is what most tests write.
type entry struct {
	To   string // the resource
	ID   string // the idempotency key
	Text string `json:",omitempty"`
}

func kindOf(name string) worker.Kind[entry] {
	return worker.Kind[entry]{
		Name:           name,
		Resource:       func(e entry) string { return e.To },
		IdempotencyKey: func(_ context.Context, e entry) string { return e.ID },
	}
}

// newWorker makes a worker of Name "w", unless cfg says otherwise, that logs
// nothing, unless cfg says where.
func newWorker(t testing.TB, rdb redis.UniversalClient, cfg worker.Config) *worker.Worker {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "w"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w, err := worker.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// wrap makes a writer of kind "entry".
func wrap(t testing.TB, w *worker.Worker, write func(context.Context, entry) error) *worker.Writer[entry] {
	t.Helper()
	x, err := worker.Wrap(w, write, kindOf("entry"))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func wrapBatch(t testing.TB, w *worker.Worker, write func(context.Context, []entry) error) *worker.Writer[entry] {
	t.Helper()
	x, err := worker.WrapBatch(w, write, kindOf("entry"))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// start runs w until stop is called, which returns when Run has, or until the
// test ends.
func start(t testing.TB, w *worker.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// ran and deferred fail the test unless Do said so.
func ran(t testing.TB, x *worker.Writer[entry], e entry) {
	t.Helper()
	if out, err := x.Do(t.Context(), e); err != nil || !out.Ran || out.Deferred || out.ID != e.ID {
		t.Fatalf("Do(%v): %+v, %v, want that it ran", e, out, err)
	}
}

func deferred(t testing.TB, x *worker.Writer[entry], e entry) worker.Outcome {
	t.Helper()
	out, err := x.Do(t.Context(), e)
	if err != nil || out.Ran || !out.Deferred || out.ID != e.ID {
		t.Fatalf("Do(%v): %+v, %v, want that it is deferred", e, out, err)
	}
	return out
}

func push(t testing.TB, x *worker.Writer[entry], es ...entry) {
	t.Helper()
	for _, e := range es {
		if _, err := x.Push(t.Context(), e, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// book is what writes are written into.
type book struct {
	mu      sync.Mutex
	ids     []string
	inside  map[string]bool
	overlap bool
}

// write notes e. It yields in the middle, so that an overlap shows.
func (b *book) write(_ context.Context, e entry) error {
	b.mu.Lock()
	if b.inside == nil {
		b.inside = map[string]bool{}
	}
	b.overlap = b.overlap || b.inside[e.To]
	b.inside[e.To] = true
	b.ids = append(b.ids, e.ID)
	b.mu.Unlock()

	b.mu.Lock()
	b.inside[e.To] = false
	b.mu.Unlock()
	return nil
}

func (b *book) list() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.ids)
}

func (b *book) reads(t testing.TB, want ...string) {
	t.Helper()
	if got := b.list(); !slices.Equal(got, want) {
		t.Errorf("written: %v, want %v", got, want)
	}
}

// gate is a function that waits, so that a test can look while it holds its
// lock.
type gate struct {
	book
	entered chan entry
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan entry, 100), open: make(chan struct{})} }

func (g *gate) write(ctx context.Context, e entry) error {
	select {
	case g.entered <- e:
	default: // nobody wants to know of so many
	}
	<-g.open
	return g.book.write(ctx, e)
}

// hold has x write e in a goroutine, and returns when its function has begun.
// pass lets it, and all after it, go on.
func hold(t testing.TB, x *worker.Writer[entry], g *gate, e entry) (pass func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if out, err := x.Do(context.WithoutCancel(t.Context()), e); err != nil || !out.Ran {
			t.Errorf("Do(%v): %+v, %v, want that it ran", e, out, err)
		}
	}()
	<-g.entered
	pass = sync.OnceFunc(func() {
		close(g.open)
		<-done
	})
	t.Cleanup(pass)
	return pass
}

// journal is a logger whose output can be searched.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) count(text string) int { return strings.Count(j.String(), text) }

// record is an observer that remembers.
type record struct {
	mu  sync.Mutex
	all []worker.Event
}

func (v *record) observe(e worker.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, e)
}

// of lists the types of what happened to the write id.
func (v *record) of(id string) []worker.EventType {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []worker.EventType
	for _, e := range v.all {
		if e.ID == id {
			out = append(out, e.Type)
		}
	}
	return out
}

func (v *record) find(id string, typ worker.EventType) worker.Event {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.all {
		if e.ID == id && e.Type == typ {
			return e
		}
	}
	return worker.Event{}
}

// empty fails the test if anything waits, is dead or is locked, or if an
// invariant of the key space does not hold.
func empty(t testing.TB, rdb redis.UniversalClient, w *worker.Worker) {
	t.Helper()
	redistest.Audit(t, rdb, w.Queue().Name())
	ctx := context.WithoutCancel(t.Context())
	keys, err := rdb.Keys(ctx, "{"+w.Queue().Name()+":*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		shard, key, _ := strings.Cut(k, "}:")
		if strings.Count(shard, ":") > 1 {
			continue // of another name: Run checks the set-up in one of its own
		}
		if key != "clock" && key != "alive" && key != "shards" {
			t.Errorf("left behind: %q", k)
		}
	}
}

// idle says that nothing waits.
func idle(t testing.TB, rdb redis.UniversalClient, w *worker.Worker) func() bool {
	return func() bool {
		keys, err := rdb.Keys(context.WithoutCancel(t.Context()), "{"+w.Queue().Name()+":*}:write:*").Result()
		return err == nil && len(keys) == 0
	}
}

// until lets virtual time go on, in a bubble, until cond is true.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for range 60_000 {
		if cond() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("waited a minute in vain: %s", what)
}

// look returns where a write is, or fails the test.
func look(t testing.TB, w *worker.Worker, e entry) deferral.Item {
	t.Helper()
	it, err := w.Queue().LookupIn(t.Context(), e.To, e.ID)
	if err != nil {
		t.Fatalf("look for %v: %v", e, err)
	}
	return it
}

// bubble runs f in a synctest bubble with a server in it.
func bubble(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, redistest.MiniInBubble(t)) })
}

func numbered(to string, n int) []entry {
	es := make([]entry, n)
	for i := range es {
		es[i] = entry{To: to, ID: fmt.Sprintf("w%03d", i)}
	}
	return es
}

func idsOf(es []entry) []string {
	var ids []string
	for _, e := range es {
		ids = append(ids, e.ID)
	}
	return ids
}
