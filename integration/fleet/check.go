package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/history"
	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/redistest"
)

// Report is what became of a fleet's writes.
type Report struct {
	Accepted, Refused, Unknown int
	Effects                    int
	Redelivered                int // starts of writes that had been started before
	Failed                     int // calls of functions that returned an error
	Stale                      int // of those, refused by the fence
	LocksLost                  int // while a write ran
	Torn                       int // writes that were found without their payload
	Dead                       int
	LostWrites                 int // accepted, and gone with Redis's memory
	LostReplies                int
	Slowest                    time.Duration // of the submissions
	Violations                 []string
}

func (r *Report) violate(kind, format string, args ...any) {
	r.Violations = append(r.Violations, kind+": "+fmt.Sprintf(format, args...))
}

// Has says that a violation of a kind was found.
func (r *Report) Has(kind string) bool {
	for _, v := range r.Violations {
		if strings.HasPrefix(v, kind+": ") {
			return true
		}
	}
	return false
}

// String is the report in a line.
func (r *Report) String() string {
	return fmt.Sprintf("%d accepted, %d refused, %d unknown, %d in effect, %d redelivered, %d failed, %d stopped by the fence, %d locks lost, %d torn, %d dead, %d lost, %d violations",
		r.Accepted, r.Refused, r.Unknown, r.Effects, r.Redelivered, r.Failed, r.Stale, r.LocksLost, r.Torn, r.Dead, r.LostWrites, len(r.Violations))
}

// check judges what the processes have said, what is in the database and what is
// left in Redis. All processes have ended.
func (f *Fleet) check(r *Report) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.t.Context()), patience)
	defer cancel()
	h := &history.History{ClockLost: f.ClockLost}
	f.submissions(h, r)
	if err := f.effects(ctx, h, r); err != nil {
		r.violate("check", "the effects cannot be read: %v", err)
	}
	f.places(ctx, h, r)
	for _, v := range h.Check() {
		if v.Kind == history.Lost && f.MayLose {
			r.LostWrites++
			continue
		}
		if v.Kind == history.Overtaken && f.MayOvertake {
			continue
		}
		r.violate(string(v.Kind), "%s: %s", v.Ref, v.Detail)
	}
	problems, err := redistest.Problems(ctx, f.rdb, f.name)
	if err != nil {
		r.violate("check", "the keys cannot be read: %v", err)
	}
	for _, p := range problems {
		r.violate("keys", "%s", p)
	}
}

// submissions makes history of what the processes have said.
func (f *Fleet) submissions(h *history.History, r *Report) {
	for _, p := range f.processes {
		open := map[history.Ref]int{}
		for _, rec := range p.said() {
			ref := history.Ref{Resource: rec.Resource, ID: rec.ID}
			switch rec.Event {
			case saidCall:
				open[ref] = len(h.Submissions)
				h.Submissions = append(h.Submissions, history.Submission{
					Ref: ref, Payload: rec.Payload, Called: time.Unix(0, rec.At), Outcome: history.Unknown, Unordered: rec.Later,
				})
				r.Unknown++
			case saidReturn:
				s := &h.Submissions[open[ref]]
				s.Returned = time.Unix(0, rec.At)
				r.Slowest = max(r.Slowest, s.Returned.Sub(s.Called))
				switch rec.Outcome {
				case "accepted":
					s.Outcome = history.Accepted
					r.Accepted, r.Unknown = r.Accepted+1, r.Unknown-1
				case "refused":
					s.Outcome = history.Refused
					r.Refused, r.Unknown = r.Refused+1, r.Unknown-1
				}
			case saidAgain:
				r.Redelivered++
			case saidEnded:
				r.Failed++
			case saidStale:
				r.Failed, r.Stale = r.Failed+1, r.Stale+1
			case saidRefused:
				r.violate("refused", "%s was stopped although nobody has written with a greater fence: %s", ref, rec.Text)
			case saidLost:
				r.LocksLost++
			case saidTorn:
				r.Torn++
			case saidNote:
				if strings.HasPrefix(rec.Text, "lost ") {
					r.LostReplies++
				}
			}
		}
	}
}

// effects reads what the database has, each resource in the order of its
// commits. A transaction's time is a call as well: two may not overlap.
func (f *Fleet) effects(ctx context.Context, h *history.History, r *Report) error {
	db, err := pgx.Connect(ctx, f.postgres)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(ctx) }()
	rows, err := db.Query(ctx, "SELECT resource, id, payload, process, fence, entered, exited FROM effects ORDER BY resource, n")
	if err != nil {
		return err
	}
	var e history.Effect
	var process string
	var entered, exited time.Time
	_, err = pgx.ForEachRow(rows, []any{&e.Resource, &e.ID, &e.Payload, &process, &e.Fence, &entered, &exited}, func() error {
		h.Effects = append(h.Effects, e)
		n := len(h.Calls)
		if n > 0 && h.Calls[n-1].Resource == e.Resource && h.Calls[n-1].Holder == process && h.Calls[n-1].From.Equal(entered) {
			h.Calls[n-1].Until = exited // one transaction for a batch
			h.Calls[n-1].IDs = append(h.Calls[n-1].IDs, e.ID)
			return nil
		}
		h.Calls = append(h.Calls, history.Call{
			Resource: e.Resource, IDs: []string{e.ID}, Fence: e.Fence, Holder: process, From: entered, Until: exited,
		})
		return nil
	})
	r.Effects = len(h.Effects)
	return err
}

// places reads what is still in the queue, and what is dead.
func (f *Fleet) places(ctx context.Context, h *history.History, r *Report) {
	q := f.Queue()
	h.Dead, r.Dead = slices.Clone(f.takenOut), len(f.takenOut)
	for it, err := range q.Dead(ctx) {
		if err != nil {
			r.violate("check", "the dead letters cannot be read: %v", err)
			break
		}
		r.Dead++
		h.Dead = append(h.Dead, history.Ref{Resource: it.Resource, ID: it.ID})
		if !f.AllowDead {
			r.violate("dead", "%q on %q: %s", it.ID, it.Resource, it.Cause)
		}
	}
	h.Waiting = f.waiting(ctx, r)
	locks, err := redistest.Locks(ctx, f.rdb, f.name)
	if err != nil {
		r.violate("check", "the locks cannot be read: %v", err)
	}
	for _, l := range locks {
		r.violate("lock", "nobody is left and %q is locked", l)
	}
}

// waiting reads which writes still have a payload. What is wrong with their
// places the audit of the keys tells.
func (f *Fleet) waiting(ctx context.Context, r *Report) (refs []history.Ref) {
	var mu sync.Mutex // guards refs: a cluster's nodes are read at once
	node := func(ctx context.Context, c *redis.Client) error {
		keys := c.Scan(ctx, 0, "{"+f.name+":*}:write:*", 1000).Iterator()
		for keys.Next(ctx) {
			_, ref, _ := strings.Cut(keys.Val(), "}:write:")
			resource, id := keyspace.Split(ref)
			mu.Lock()
			refs = append(refs, history.Ref{Resource: resource, ID: id})
			mu.Unlock()
		}
		return keys.Err()
	}
	var err error
	switch c := f.rdb.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, node)
	case *redis.Client:
		err = node(ctx, c)
	}
	if err != nil {
		r.violate("check", "the payloads cannot be read: %v", err)
	}
	return refs
}

// Effects is how many writes have taken effect so far.
func (f *Fleet) Effects() int {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.t.Context()), patience)
	defer cancel()
	db, err := pgx.Connect(ctx, f.postgres)
	if err != nil {
		return 0 // it is down just now
	}
	defer func() { _ = db.Close(ctx) }()
	var n int
	_ = db.QueryRow(ctx, "SELECT count(*) FROM effects").Scan(&n) // likewise
	return n
}
