package deferral_test

import (
	"errors"
	"testing"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// A write was granted, the reply lost, and before the call was repeated another
// pushed a write of the same ID. The repetition found it waiting, and said so: the
// lock was left to nobody for a whole TTL.
func TestGrantWhoseReplyWasLostLeavesNoLockWhenAnotherPushedTheSameWrite(t *testing.T) {
	for name, payload := range map[string]string{"the same": "payload of a", "with another payload": "another"} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, deferral.Config{}, func(t *testing.T, b *bench) {
				b.settle(b.granted("warm", "up"), 0) // the script is known from here on
				p := redistest.NewProxy(t, b.s)
				mine := b.another(p.Client(t))
				release := p.HoldReply("payload of a")
				defer release()
				type answer struct {
					a   *deferral.Admission
					err error
				}
				got := make(chan answer)
				go func() {
					a, err := mine.Admit(t.Context(), write("r", "a"))
					got <- answer{a, err}
				}()
				redistest.Wait(t, "the lock", func() bool { return b.holder("r") != "" })
				w := write("r", "a")
				w.Payload = []byte(payload)
				if _, err := b.q.Push(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				p.Cut() // the reply is lost, and the call repeated
				switch g := <-got; {
				case errors.Is(g.err, deferral.ErrMismatch) && payload == "another":
				case g.err != nil || g.a.Turn != nil || g.a.Why != deferral.Already:
					t.Errorf("admitted: %+v, %v", g.a, g.err)
				}
				if order := b.drain("r"); order != "a" {
					t.Errorf("ran %q", order)
				}
			})
		})
	}
}
