package deferral_test

import (
	"slices"
	"testing"
	"time"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// A process that could not run the head of a lane used to be handed the lane
// again each time its rest was over, and could win it every time from the one
// process that can run it.
func TestALaneThatIsSkippedIsLeftToOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		q, err := deferral.New(rdb, deferral.Config{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		push := func(resource string) {
			if _, err := q.Push(t.Context(), deferral.Write{Resource: resource}); err != nil {
				t.Fatal(err)
			}
		}
		push("strange")
		look := func(n int, skip ...string) deferral.Due {
			d, err := q.Due(t.Context(), 0, n, 0, 0, skip...)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		if d := look(1, "strange"); len(d.Lanes) != 0 || d.Next >= 0 {
			t.Errorf("with nothing but the skipped lane: %+v, want no lane and no next look", d)
		}
		push("plain")
		if d := look(1, "strange", "other"); !slices.Equal(d.Lanes, []string{"plain"}) {
			t.Errorf("behind the skipped lane: %q, want plain", d.Lanes)
		}
		if d := look(1, "strange"); len(d.Lanes) != 0 || d.Next <= 0 || d.Next > time.Second {
			t.Errorf("plain is reserved: %+v, want a look when that ends", d)
		}
		if d := look(2); !slices.Equal(d.Lanes, []string{"strange"}) {
			t.Errorf("others are given %q, want strange", d.Lanes)
		}
		redistest.Audit(t, rdb, "a")
	})
}
