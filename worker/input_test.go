package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

func TestBadConfigIsAnErrorThatNamesTheField(t *testing.T) {
	carry := func(context.Context) map[string]string { return nil }
	restore := func(ctx context.Context, _ map[string]string) context.Context { return ctx }
	rdb := redistest.Mini(t).Client(t)
	for field, bad := range map[string][]worker.Config{
		"Name":           {{}, {Name: "a{b"}, {Name: "\xff"}, {Name: strings.Repeat("n", 129)}, {Name: "a\x00"}},
		"Batch":          {{Name: "w", Batch: -1}, {Name: "w", Batch: 1001}},
		"Lookback":       {{Name: "w", Lookback: -1}, {Name: "w", Lookback: time.Hour + 1}},
		"Concurrency":    {{Name: "w", Concurrency: -1}, {Name: "w", Concurrency: 10_001}},
		"LockTTL":        {{Name: "w", LockTTL: -1}, {Name: "w", LockTTL: time.Millisecond}, {Name: "w", LockTTL: 2 * time.Hour}},
		"MaxHold":        {{Name: "w", MaxHold: -1}, {Name: "w", MaxHold: time.Second}, {Name: "w", MaxHold: 25 * time.Hour}},
		"Grace":          {{Name: "w", Grace: -1}, {Name: "w", Grace: time.Hour + 1}},
		"MaxAttempts":    {{Name: "w", MaxAttempts: -1}, {Name: "w", MaxAttempts: 1_000_001}},
		"OnFailure":      {{Name: "w", OnFailure: -1}, {Name: "w", OnFailure: 3}},
		"Carry":          {{Name: "w", Carry: carry}, {Name: "w", Restore: restore}},
		"Shards":         {{Name: "w", Shards: -1}, {Name: "w", Shards: 1025}},
		"MaxPayload":     {{Name: "w", MaxPayload: -1}, {Name: "w", MaxPayload: math.MaxInt}},
		"MaxDepth":       {{Name: "w", MaxDepth: -1}},
		"MaxDead":        {{Name: "w", MaxDead: -1}},
		"Replicas":       {{Name: "w", Replicas: -1}, {Name: "w", Replicas: 17}},
		"ReplicaTimeout": {{Name: "w", ReplicaTimeout: -1}, {Name: "w", Replicas: 1, ReplicaTimeout: time.Minute}},
		"Poll":           {{Name: "w", Poll: -1}, {Name: "w", Poll: 99 * time.Millisecond}, {Name: "w", Poll: 2 * time.Hour}},
	} {
		for _, cfg := range bad {
			w, err := worker.New(rdb, cfg)
			if w != nil || err == nil || !strings.Contains(err.Error(), "Config."+field) {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	if _, err := worker.New(rdb, worker.Config{Name: "w"}); err != nil {
		t.Error(err)
	}
	if n := rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("New has stored %d keys", n)
	}
}

// A client that is a nil pointer made New panic.
func TestNewNeedsAClient(t *testing.T) {
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if w, err := worker.New(rdb, worker.Config{Name: "w"}); err == nil || w != nil {
			t.Errorf("%T: %v", rdb, err)
		}
	}
}

func TestWrapRefusesWhatCannotWork(t *testing.T) {
	w := newWorker(t, redistest.Mini(t).Client(t), worker.Config{})
	one := func(context.Context, entry) error { return nil }
	many := func(context.Context, []entry) error { return nil }
	wrap(t, w, one)
	for word, try := range map[string]struct {
		w    *worker.Worker
		one  func(context.Context, entry) error
		many func(context.Context, []entry) error
		k    worker.Kind[entry]
	}{
		"worker":        {nil, one, many, kindOf("x")},
		"function":      {w, nil, nil, kindOf("x")},
		"Kind.Name":     {w, one, many, kindOf("")},
		"Kind.Name ":    {w, one, many, kindOf(strings.Repeat("k", 129))},
		"twice":         {w, one, many, kindOf("entry")},
		"Kind.Resource": {w, one, many, worker.Kind[entry]{Name: "x"}},
	} {
		x, err := worker.Wrap(try.w, try.one, try.k)
		if x != nil || err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("Wrap, %s: %v", word, err)
		}
		x, err = worker.WrapBatch(try.w, try.many, try.k)
		if x != nil || err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("WrapBatch, %s: %v", word, err)
		}
	}
}

func TestBadWriteIsRefusedAndNothingIsStored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{MaxPayload: 1000})
		codec := kindOf("codec")
		codec.Codec = failingCodec{marshal: errWrite}
		carries := newWorker(t, rdb, worker.Config{
			Carry:   func(context.Context) map[string]string { return map[string]string{"k": strings.Repeat("v", 1<<17)} },
			Restore: func(ctx context.Context, _ map[string]string) context.Context { return ctx },
		})
		run := func(context.Context, entry) error {
			t.Error("it ran")
			return nil
		}
		add := func(w *worker.Worker, k worker.Kind[entry]) *worker.Writer[entry] {
			x, err := worker.Wrap(w, run, k)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		x := add(w, kindOf("entry"))
		for name, c := range map[string]struct {
			x    *worker.Writer[entry]
			e    entry
			want error
		}{
			"no resource":      {x, entry{ID: "1"}, nil},
			"bad resource":     {x, entry{To: "a\x00b", ID: "1"}, deferral.ErrInvalid},
			"long resource":    {x, entry{To: strings.Repeat("r", 1025), ID: "1"}, deferral.ErrInvalid},
			"no key":           {x, entry{To: "a"}, nil},
			"bad key":          {x, entry{To: "a", ID: "a\x00b"}, deferral.ErrInvalid},
			"long key":         {x, entry{To: "a", ID: strings.Repeat("k", 257)}, deferral.ErrInvalid},
			"large payload":    {x, entry{To: "a", ID: "1", Text: strings.Repeat("t", 1000)}, deferral.ErrInvalid},
			"text not UTF-8":   {x, entry{To: "a", ID: "1", Text: "\xff"}, nil},
			"codec":            {add(w, codec), entry{To: "a", ID: "1"}, errWrite},
			"too much carried": {add(carries, kindOf("entry")), entry{To: "a", ID: "1"}, deferral.ErrInvalid},
		} {
			out, err := c.x.Do(t.Context(), c.e)
			if !errors.Is(err, worker.ErrNotAccepted) || c.want != nil && !errors.Is(err, c.want) || out.Ran || out.Deferred {
				t.Errorf("Do, %s: %+v, %v", name, out, err)
			}
			if _, err = c.x.Push(t.Context(), c.e, 0); !errors.Is(err, worker.ErrNotAccepted) || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("Push, %s: %v", name, err)
			}
		}
		if _, err := x.Push(t.Context(), entry{To: "a", ID: "1"}, -1); !errors.Is(err, worker.ErrNotAccepted) || !errors.Is(err, deferral.ErrInvalid) {
			t.Errorf("a negative delay: %v", err)
		}
		if n := rdb.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys are stored", n)
		}
	})
}

func TestLaneThatIsFullRefusesTheWrite(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w := newWorker(t, s.Client(t), worker.Config{MaxDepth: 2})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		push(t, x, numbered("a", 2)...)
		if _, err := x.Do(t.Context(), entry{To: "a", ID: "3"}); !errors.Is(err, worker.ErrNotAccepted) || !errors.Is(err, deferral.ErrLaneFull) {
			t.Errorf("Do: %v", err)
		}
		once(t, w, 2)
		ran(t, x, entry{To: "a", ID: "3"})
	})
}

func TestContextThatHasEndedStoresNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		w := newWorker(t, rdb, worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error {
			t.Error("it ran")
			return nil
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errWrite)
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, worker.ErrNotAccepted) || !errors.Is(err, context.Canceled) || !errors.Is(err, errWrite) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := x.Do(ctx, entry{To: "a", ID: "1"})
		check("Do", err)
		_, err = x.Push(ctx, entry{To: "a", ID: "1"}, 0)
		check("Push", err)
		if n := rdb.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys are stored", n)
		}
	})
}

func TestContextThatEndsWhileRedisIsSilentEndsTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		rdb := s.Client(t)
		w := newWorker(t, p.Client(t), worker.Config{})
		x := wrap(t, w, func(context.Context, entry) error { return nil })
		ran(t, x, entry{To: "warm", ID: "0"})
		for name, call := range map[string]func(context.Context) error{
			"Do":   func(ctx context.Context) error { _, err := x.Do(ctx, entry{To: "a", ID: "1"}); return err },
			"Push": func(ctx context.Context) error { _, err := x.Push(ctx, entry{To: "a", ID: "1"}, 0); return err },
		} {
			arrived, release := p.HoldRequest(admitKey)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			err := call(ctx)
			cancel()
			<-arrived
			if !errors.Is(err, worker.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			release() // the late copy may still be carried out
			time.Sleep(time.Minute)
			redistest.Audit(t, rdb, "w")
		}
		start(t, w)
		until(t, "the late copies", idle(t, rdb, w))
	})
}

// What is written must not be found in logs, errors or events, whatever goes
// wrong.
func TestPayloadsAreNotInLogsErrorsOrEvents(t *testing.T) {
	const secret = "S3CRET-4711"
	bubble(t, func(t *testing.T, s *redistest.Server) {
		var j journal
		var v record
		p := redistest.NewProxy(t, s)
		w := newWorker(t, p.Client(t), worker.Config{
			Logger: j.logger(), Observe: v.observe, MaxAttempts: 2, Backoff: every(time.Second), LockTTL: 2 * time.Second, MaxHold: 2 * time.Second,
		})
		var told []error
		turn := 0
		x := wrap(t, w, func(ctx context.Context, e entry) error {
			switch turn++; turn % 4 {
			case 1:
				return errWrite
			case 2:
				panic("out of order")
			case 3:
				p.RefuseRequest("", 20)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		other := newWorker(t, s.Client(t), worker.Config{})
		strange, err := worker.Wrap(other, func(context.Context, entry) error { return nil }, kindOf("strange"))
		if err != nil {
			t.Fatal(err)
		}
		twice, err := worker.Wrap(other, func(context.Context, []string) error { return nil }, worker.Kind[[]string]{
			Name: "entry", Resource: func([]string) string { return "list" },
		})
		if err != nil {
			t.Fatal(err)
		}
		push(t, strange, entry{To: "strange", ID: "1", Text: secret})
		if _, err := twice.Push(t.Context(), []string{secret}, 0); err != nil {
			t.Fatal(err)
		}
		stop := start(t, w)
		for i := range 12 {
			e := entry{To: "a", ID: fmt.Sprint(i), Text: secret}
			_, err := x.Do(t.Context(), e)
			told = append(told, err)
			_, err = x.Push(t.Context(), entry{To: fmt.Sprint(i), ID: "p", Text: secret}, 0)
			told = append(told, err)
			_, err = x.Do(t.Context(), entry{To: fmt.Sprint(i), ID: "p", Text: secret + "!"})
			told = append(told, err)
			time.Sleep(3 * time.Second)
		}
		stop()
		if turn < 10 || j.count("level=ERROR") == 0 || j.count("cannot be run") < 2 {
			t.Errorf("%d calls; the log says\n%v", turn, &j)
		}
		if strings.Contains(j.String(), secret) {
			t.Errorf("the payload is in the log:\n%v", &j)
		}
		if text := fmt.Sprintf("%+v %v", v.all, told); strings.Contains(text, secret) {
			t.Errorf("the payload is in an error or an event: %s", text)
		}
	})
}
