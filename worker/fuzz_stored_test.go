package worker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

// FuzzStoredWrite has a worker find a write of any kind and payload in its
// queue. It runs it as what it is, or leaves it where it is, uncounted; and it
// runs the writes of other resources.
func FuzzStoredWrite(f *testing.F) {
	m := redistest.Mini(f)
	rdb := m.Client(f)
	for _, payload := range []string{
		`{"To":"r","ID":"raw"}`, `{"To":"r","ID":"raw","Text":"x"}`, `{"To":"r","ID":"raw"} {}`, `{"To":"r","ID":"raw","New":1}`,
		`{"To":1}`, `null`, ``, `{`, "\x00", "\xff", `"` + strings.Repeat("x", 1000) + `"`, strings.Repeat("[", 20_000),
	} {
		f.Add("entry", []byte(payload), "k", "v")
		f.Add("novelty", []byte(payload), "", "\xff")
	}
	f.Add("", []byte(nil), "trace", "id")
	f.Fuzz(func(t *testing.T, kind string, payload []byte, key, value string) {
		m.Mini().FlushAll()
		var mu sync.Mutex // the two lanes run at the same time
		var ran []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, what)
		}
		w := newWorker(t, rdb, worker.Config{Restore: func(ctx context.Context, meta map[string]string) context.Context {
			note(fmt.Sprintf("restored %q", meta[key]))
			return ctx
		}, Carry: func(context.Context) map[string]string { return nil }})
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			in, _ := worker.FromContext(ctx)
			note(in.Resource + " " + in.ID + " " + e.ID)
			return nil
		})
		ctx := t.Context()
		raw := deferral.Write{Resource: "r", ID: "raw", Kind: kind, Payload: payload, Meta: map[string]string{key: value}}
		if _, err := w.Queue().Push(ctx, raw); err != nil {
			return // too long
		}
		if _, err := x.Push(ctx, entry{To: "other", ID: "good"}, 0); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := w.RunOnce(ctx); err != nil {
				t.Fatal(err)
			}
		}
		told := strings.Join(ran, ", ")
		if !strings.Contains(told, "other good good") {
			t.Errorf("the other write did not run: %s", told)
		}
		var e entry
		readable := kind == "entry" && worker.JSON.Unmarshal(payload, &e) == nil
		if readable != strings.Contains(told, "r raw "+e.ID) || strings.Count(told, "r raw") != b2i(readable) {
			t.Errorf("readable: %v, ran: %s", readable, told)
		}
		it, err := w.Queue().LookupIn(ctx, "r", "raw")
		if readable != (err != nil) || !readable && (it.Place != deferral.Waiting || it.Attempts != 0) {
			t.Errorf("readable: %v, left: %+v, %v", readable, it, err)
		}
		redistest.Audit(t, rdb, "w")
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
