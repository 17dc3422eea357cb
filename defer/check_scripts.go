package deferral

import (
	"context"
	"errors"
	"time"
)

// rehearsal runs every script in a scratch queue, where the functions that use
// them find all they need.
type rehearsal struct {
	q *Queue
	t *Turn
}

// scene is a step of a rehearsal, and the script that it is about.
type scene struct {
	script string
	play   func(context.Context) error
}

// rehearse plays scenes up to the first that is refused, and reports that.
func (c *checkup) rehearse(ctx context.Context, r *rehearsal, scenes []scene) error {
	defer r.end()
	for _, s := range scenes {
		switch err := s.play(ctx); {
		case err == nil, errors.Is(err, ErrNotFound):
		case isAnswer(err), errors.Is(err, ErrLost):
			c.add(Problem, CodeRefused, "%s is refused: %v", s.script, err)
			return nil
		default:
			return err
		}
	}
	return nil
}

// work is what workers do: a has two writes, one of which is buried, one more
// for later; b is admitted.
func (r *rehearsal) work() []scene {
	return []scene{
		{"push.lua", r.push(Write{Resource: scratchA, ID: scratchW})},
		{"push.lua", r.push(Write{Resource: scratchA, ID: scratchW + "2"})},
		{"push.lua", r.push(Write{Resource: scratchA, ID: scratchW + "3", Delay: time.Minute})},
		{"take.lua", func(ctx context.Context) error {
			_, err := r.q.Due(ctx, 0, 1, 0, time.Second)
			return err
		}},
		{"admit.lua", func(ctx context.Context) error {
			a, err := r.q.Admit(ctx, Write{Resource: scratchB, ID: scratchW})
			if err != nil {
				return err
			}
			r.t = a.Turn
			return nil
		}},
		{"redislock's refresh.lua", r.hold(func(ctx context.Context) error { return r.t.lease.Extend(ctx) })},
		{"stamp.lua", r.hold(func(ctx context.Context) error { return r.t.lease.Lift(ctx, 0) })},
		{"leave.lua", r.settle(Done, 0)},
		{"claim.lua", func(ctx context.Context) (err error) {
			r.t, err = r.q.Enter(ctx, scratchA, 1, 0)
			return err
		}},
		{"leave.lua", r.settle(Buried, 1)},
		{"leave.lua", r.settle(Failed, 0)},
	}
}

// operate is what operators, and users of locks alone, do with what work has left.
func (r *rehearsal) operate() []scene {
	on := func(f func(ctx context.Context, resource, id string) error) func(context.Context) error {
		return func(ctx context.Context) error { return f(ctx, scratchA, scratchW) }
	}
	return []scene{
		{"lookup.lua", on(func(ctx context.Context, resource, id string) error {
			_, err := r.q.LookupIn(ctx, resource, id)
			return err
		})},
		{"letters.lua", func(ctx context.Context) error { return firstError(r.q.Dead(ctx)) }},
		{"survey.lua", func(ctx context.Context) error { return firstError(r.q.Lanes(ctx)) }},
		{"revive.lua", on(r.q.Revive)},
		{"cancel.lua", on(r.q.CancelIn)},
		{"forget.lua", on(r.q.Forget)},
		{"pause.lua", func(ctx context.Context) error { return r.q.Pause(ctx, scratchA, "") }},
		{"pause.lua", func(ctx context.Context) error { return r.q.Resume(ctx, scratchA) }},
		{"free.lua", func(ctx context.Context) error {
			_, err := r.q.Free(ctx, scratchA)
			return err
		}},
		{"redislock's obtain.lua or release.lua", func(ctx context.Context) error {
			l, err := r.q.locker.Acquire(ctx, scratchC)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		}},
		{"inspect.lua", func(ctx context.Context) error {
			_, err := r.q.inspect(ctx, r.q.space.Shard(0), []suspect{{"lane", scratchA}})
			return err
		}},
	}
}

func (r *rehearsal) push(w Write) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.q.Push(ctx, w)
		return err
	}
}

// hold is a step that needs a turn. Nobody else knows of the scratch queue, so
// a turn that was not got, or was lost, is Redis's doing.
func (r *rehearsal) hold(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if r.t == nil {
			return ErrLost
		}
		return f(ctx)
	}
}

func (r *rehearsal) settle(fate Fate, next int) func(context.Context) error {
	return r.hold(func(ctx context.Context) error {
		s := Settlement{Next: next, GoOn: Always}
		for _, d := range r.t.Deliveries() {
			s.Verdicts = append(s.Verdicts, Verdict{Delivery: d, Fate: fate})
		}
		_, err := r.t.Settle(ctx, s)
		return err
	})
}

// end stops the renewal of a lock that a rehearsal that broke off still has.
func (r *rehearsal) end() {
	if r.t != nil {
		r.t.lease.End()
	}
}

// firstError goes through a list until its end or its error.
func firstError[T any](list func(func(T, error) bool)) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}
