package worker_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

func TestRunOnceRunsOneBatchOfEveryLaneThatIsDue(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{Batch: 2, Concurrency: 2})
		var b book
		x := wrap(t, w, b.write)
		push(t, x, numbered("a", 3)...)
		push(t, x, numbered("b", 3)...)
		push(t, x, entry{To: "c", ID: "c"})
		once(t, w, 4) // a and b; c finds no runner
		once(t, w, 2) // c, which has waited longest, and what is left of a or b
		once(t, w, 1)
		once(t, w, 0)
		if len(b.list()) != 7 {
			t.Errorf("written: %v", b.list())
		}
		empty(t, rdb, w)
	})
}

func TestRunOnceReturnsTheErrorOfRedis(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		w := newWorker(t, p.ClientWith(t, func(o *redis.Options) { o.MaxRetries = -1 }), worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		push(t, x, entry{To: "a", ID: "1"})
		p.RefuseRequest("{w:0}:due", 1<<30)
		if n, err := w.RunOnce(t.Context()); n != 0 || err == nil {
			t.Errorf("without a look: %d, %v", n, err)
		}
		p.Heal()
		p.RefuseRequest("{w:0}:lane:a", 1<<30)
		if n, err := w.RunOnce(t.Context()); n != 0 || err == nil {
			t.Errorf("without an entry: %d, %v", n, err)
		}
		p.Heal()
		time.Sleep(time.Minute)
		once(t, w, 1)
	})
}

func TestLockWithoutAnEndIsReportedAndNotTooOften(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		var j journal
		w := newWorker(t, rdb, worker.Config{Logger: j.logger()})
		var b book
		x := wrap(t, w, b.write)
		if err := rdb.Set(t.Context(), "{w:0}:lock:a", "foreign", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if out := deferred(t, x, entry{To: "a", ID: "1"}); out.HeldFor >= 0 {
			t.Errorf("%+v", out)
		}
		for range 100 {
			deferred(t, x, entry{To: "a", ID: "1"})
		}
		start(t, w)
		time.Sleep(9*time.Minute + 30*time.Second)
		if n := j.count("a lock has no end"); n != 10 {
			t.Errorf("said %d times in ten minutes", n)
		}
		if freed, err := w.Queue().Free(t.Context(), "a"); !freed || err != nil {
			t.Errorf("Free: %v, %v", freed, err)
		}
		synctest.Wait()
		b.reads(t, "1")
		empty(t, rdb, w)
	})
}

func TestEventsOfAWriteThatWasDeferredComeInOrderAndOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		var v record
		w := newWorker(t, s.Client(t), worker.Config{Observe: v.observe})
		g := newGate()
		x := wrap(t, w, g.write)
		start(t, w)
		synctest.Wait()
		pass := hold(t, x, g, entry{To: "a", ID: "1"})
		deferred(t, x, entry{To: "a", ID: "2"})
		time.Sleep(time.Second)
		pass()
		synctest.Wait()
		want := map[string][]worker.EventType{
			"1": {worker.EventAdmitted, worker.EventStarted, worker.EventEnded},
			"2": {worker.EventDeferred, worker.EventStarted, worker.EventEnded},
		}
		for id, types := range want {
			if got := v.of(id); !slices.Equal(got, types) {
				t.Errorf("%s: %v, want %v", id, got, types)
			}
		}
		if e := v.find("1", worker.EventEnded); !e.Direct || e.Took != time.Second || e.Batch != 1 || e.Err != nil || e.Kind != "entry" || e.Resource != "a" {
			t.Errorf("%+v", e)
		}
		if e := v.find("2", worker.EventDeferred); !e.Direct || e.Why != deferral.Held || e.Attempt != 0 || e.Unattended {
			t.Errorf("%+v", e)
		}
		if e := v.find("2", worker.EventStarted); e.Direct || e.Waited.Round(time.Millisecond) != time.Second || e.Attempt != 1 {
			t.Errorf("%+v", e)
		}
	})
}
