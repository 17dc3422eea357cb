package worker_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/deferlock/deferlock/worker"
)

func TestOneCallOfAFunctionHasOneEffect(t *testing.T) {
	if _, ok := worker.BeginOnce(t.Context()); ok {
		t.Error("an effect began outside of a function")
	}
	in := worker.Info{ID: "w1"}
	ctx := worker.NewContext(t.Context(), in)
	end, ok := worker.BeginOnce(ctx)
	if !ok {
		t.Fatal("the first was refused")
	}
	if _, ok := worker.BeginOnce(ctx); ok {
		t.Error("a second began while the first was under way")
	}
	end(false)
	if end, ok = worker.BeginOnce(ctx); !ok {
		t.Fatal("another was refused although the first had no effect")
	}
	end(true)
	if _, ok := worker.BeginOnce(ctx); ok {
		t.Error("a second began after the first had taken")
	}
	same, _ := worker.FromContext(ctx)
	if _, ok := worker.BeginOnce(worker.NewContext(ctx, same)); ok {
		t.Error("a context made of the same call allows a second")
	}
	if _, ok := worker.BeginOnce(worker.NewContext(ctx, in)); !ok {
		t.Error("the next call of the function was refused")
	}
}

func TestOneOfManyEffectsAtOnceBegins(t *testing.T) {
	ctx := worker.NewContext(t.Context(), worker.Info{ID: "w1"})
	var began atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, ok := worker.BeginOnce(ctx); ok {
				began.Add(1)
			}
		})
	}
	wg.Wait()
	if n := began.Load(); n != 1 {
		t.Errorf("%d began", n)
	}
}
