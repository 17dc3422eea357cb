package fleet

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/integration/servers"
	"github.com/deferlock/deferlock/internal/history"
	"github.com/deferlock/deferlock/internal/redistest"
)

// Fleet is the processes of one test, the queue they share, and the database
// they write to.
type Fleet struct {
	// AllowDead says that dead letters are what the test is about.
	AllowDead bool

	// ClockLost says that Redis was made to lose its memory while its clock was
	// set back; see history.History.
	ClockLost bool

	// MayLose says that Redis was made to lose what it had accepted, as far as
	// the durability level lets it. Lost writes are counted and are no violation.
	MayLose bool

	// MayOvertake says that there were two queues at once, of which each keeps its
	// own order only. Order is not judged.
	MayOvertake bool

	// Within is how long the queue may go without any progress once all is
	// healed. Default 10 s: many lives of a lock.
	Within time.Duration

	t         testing.TB
	name      string
	redis     Target
	rdb       redis.UniversalClient
	postgres  string
	shards    int
	processes []*Process
	takenOut  []history.Ref
}

var fleets atomic.Int64

// New makes a fleet without processes on a Redis and an empty database.
func New(t testing.TB, redis Target, postgres string) *Fleet {
	t.Helper()
	f := &Fleet{
		Within: 10 * time.Second, t: t, redis: redis, postgres: postgres, shards: 1,
		name: fmt.Sprintf("fleet-%d", fleets.Add(1)),
	}
	if err := setup(t.Context(), postgres); err != nil {
		t.Fatalf("fleet: %v", err)
	}
	f.rdb = redis.client(nil)
	t.Cleanup(func() { _ = f.rdb.Close() })
	return f
}

// Name is that of the fleet's workers.
func (f *Fleet) Name() string { return f.name }

// Redis is a client of the fleet's Redis.
func (f *Fleet) Redis() redis.UniversalClient { return f.rdb }

// Start starts a process and returns when it works.
func (f *Fleet) Start(spec Spec) *Process {
	f.t.Helper()
	spec.Process = fmt.Sprintf("p%d", len(f.processes)+1)
	if spec.Name == "" {
		spec.Name = f.name
	}
	if len(spec.Redis.Addrs) == 0 {
		spec.Redis = f.redis
	}
	if spec.Postgres == "" {
		spec.Postgres = f.postgres
	}
	if spec.Shards > 0 {
		f.shards = spec.Shards
	}
	p := start(f.t, spec)
	f.processes = append(f.processes, p)
	return p
}

// Processes are those that were started, alive or not.
func (f *Fleet) Processes() []*Process { return f.processes }

// Quiet has all processes submit nothing more, and returns when the last of
// their calls has returned.
func (f *Fleet) Quiet() {
	f.t.Helper()
	for _, p := range f.processes {
		p.Continue()
		p.tell(sayQuiet)
	}
	for _, p := range f.processes {
		if p.Alive() {
			p.await(saidQuiet, 1, insistence+patience)
		}
	}
}

// Accepted is how many writes the processes were told are taken care of.
func (f *Fleet) Accepted() int {
	n := 0
	for _, p := range f.processes {
		n += p.Taken()
	}
	return n
}

// Finish lets the fleet end: it submits nothing more, drains the queue, and its
// processes leave. What is found to be wrong fails the test. All faults must
// have been healed.
func (f *Fleet) Finish() *Report {
	f.t.Helper()
	r := f.End()
	for i, v := range r.Violations {
		if i == 20 {
			f.t.Errorf("… and %d more", len(r.Violations)-i)
			break
		}
		f.t.Errorf("%s", v)
	}
	if r.Accepted == 0 {
		f.t.Error("fleet: no write was accepted: the test proves nothing")
	}
	if f.t.Failed() {
		for _, p := range f.processes {
			f.t.Logf("%s logged: %s", p.Spec.Process, p.errs)
		}
	}
	return r
}

// End is Finish without a word to the test.
func (f *Fleet) End() *Report {
	f.t.Helper()
	f.Quiet()
	if !f.runs() {
		f.Start(Spec{Run: true, Plant: f.plant(), Replicas: 0, Shards: f.shardsOf()})
	}
	r := &Report{}
	stuck := f.drain()
	for _, p := range f.processes {
		if wrong := p.exit(); wrong != "" {
			r.violate("process", "%s", wrong)
		}
	}
	for _, s := range stuck {
		r.violate("stuck", "%s", s)
	}
	f.check(r)
	return r
}

// TakenOut notes that an operator has taken a write out of the queue.
func (f *Fleet) TakenOut(resource, id string) {
	f.takenOut = append(f.takenOut, history.Ref{Resource: resource, ID: id})
}

// runs says that somebody alive works the queue.
func (f *Fleet) runs() bool {
	for _, p := range f.processes {
		if p.Alive() && p.Spec.Run {
			return true
		}
	}
	return false
}

// plant is what the processes are made to do wrong: who drains the queue does
// it too.
func (f *Fleet) plant() string {
	for _, p := range f.processes {
		if p.Spec.Plant != "" {
			return p.Spec.Plant
		}
	}
	return ""
}

func (f *Fleet) shardsOf() int {
	if f.shards == 1 {
		return 0
	}
	return f.shards
}

// Queue is the fleet's queue.
func (f *Fleet) Queue() *deferral.Queue {
	f.t.Helper()
	q, err := deferral.New(f.rdb, deferral.Config{Name: f.name, Shards: f.shards})
	if err != nil {
		f.t.Fatalf("fleet: %v", err)
	}
	return q
}

// drain waits until nothing waits and nothing is locked, and returns what still
// does when there has been no progress for too long.
func (f *Fleet) drain() []string {
	ctx := context.WithoutCancel(f.t.Context())
	q := f.Queue()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	least, since := -1, time.Now()
	for {
		n, what := f.left(ctx, q)
		switch {
		case n == 0:
			return nil
		case n > 0 && (least < 0 || n < least):
			least, since = n, time.Now()
		case time.Since(since) > f.Within:
			return append([]string{what}, f.lanes(q)...)
		}
		<-tick.C
	}
}

// left counts what waits or, when nothing does, what is locked; -1 if it cannot
// be counted. It says what it is. To look for locks takes the server a while for
// each write that waits.
func (f *Fleet) left(ctx context.Context, q *deferral.Queue) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := q.Stats(ctx)
	if err != nil {
		return -1, fmt.Sprintf("the queue cannot be counted: %v", err)
	}
	pushed, err := f.rdb.ZCard(ctx, naiveQueue(f.name)).Result() // by a planted fault
	if err != nil {
		return -1, fmt.Sprintf("the naive queue cannot be counted: %v", err)
	}
	if n := s.Waiting + s.Later + int(pushed); n > 0 {
		return n, fmt.Sprintf("%d writes in %d lanes, %d later, %d lanes paused", s.Waiting, s.Lanes, s.Later, s.Paused)
	}
	locks, err := redistest.Locks(ctx, f.rdb, f.name)
	if err != nil {
		return -1, fmt.Sprintf("the locks cannot be counted: %v", err)
	}
	return len(locks), fmt.Sprintf("locks of %q", locks)
}

// lanes describes what is stuck.
func (f *Fleet) lanes(q *deferral.Queue) (list []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.t.Context()), 5*time.Second)
	defer cancel()
	for l, err := range q.Lanes(ctx) {
		if err != nil || len(list) == 5 {
			break
		}
		list = append(list, fmt.Sprintf("%+v", l))
	}
	return list
}

// Until waits for a condition of a test.
func (f *Fleet) Until(what string, cond func() bool) {
	f.t.Helper()
	servers.Wait(f.t, patience, what, cond)
}
