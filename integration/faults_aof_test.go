package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/integration/servers"
	"github.com/deferlock/deferlock/internal/redistest"
)

// aofName is the queue that is recorded.
const aofName = "cut"

// Wherever a power cut ends the append-only file, between two commands of a
// script or in the middle of one, what is left fits together: a script has been
// carried out, or it has not.
func TestRow11FileCutAnywhere(t *testing.T) {
	t.Parallel()
	f := record(t)
	for _, tx := range f.transactions(t) {
		for _, cut := range []int{tx[len(tx)-1].to, tx[len(tx)/2].from, tx[len(tx)/2].middle()} {
			f.load(t, cut)
			for _, p := range f.problems(t) {
				t.Errorf("cut at byte %d of %d, in %v: %s", cut, len(f.whole), tx, p)
			}
		}
	}
}

// Redis 7.0 leaves the beginning of a script in a file that was cut in the
// middle of a command, and what is written from then on stands behind it: when
// it is started once more, half a script is carried out. (Valkey has mended this
// in its pull request 4342.) A rewrite of the file before that start prevents it,
// and without one nothing is lost: all that has a place has its payload, and is
// looked at.
func TestRow11HalfAScriptAfterASecondRestart(t *testing.T) {
	t.Parallel()
	f := record(t)
	halves := 0
	for i, tx := range f.transactions(t) {
		cut := tx[2+i%(len(tx)-2)].middle() // behind a command of the script at least
		for _, rewrite := range []bool{true, false} {
			f.load(t, cut)
			f.redis.Do(t, "set", "something", "else")
			if rewrite {
				f.redis.Rewrite(t)
			}
			f.redis.Do(t, "eval", "redis.call('SET', 'one', 1) redis.call('SET', 'two', 2)", 0)
			f.redis.Kill()
			f.redis.Start(t)
			for _, p := range f.problems(t) {
				halves++
				if rewrite || strings.Contains(p, "has no payload") || strings.Contains(p, "is not in due") {
					t.Errorf("cut at byte %d of %d, in %v, rewritten: %v: %s", cut, len(f.whole), tx, rewrite, p)
				}
			}
		}
	}
	t.Logf("%d traces of scripts that were carried out by half", halves)
}

// aof is the append-only file of a server, recorded while a queue was used.
type aof struct {
	redis  *servers.Redis
	name   string
	whole  []byte
	others map[string][]byte // what belongs to it: the manifest, and what it begins with
}

// record has a queue do everything that writes, and keeps the file.
func record(t *testing.T) *aof {
	t.Helper()
	r := servers.NewRedis(t)
	use(t, r.Client(t))
	r.Kill()
	names, err := filepath.Glob(filepath.Join(r.Dir(), "appendonlydir", "*"))
	if err != nil {
		t.Fatal(err)
	}
	f := &aof{redis: r, others: map[string][]byte{}}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".incr.aof") {
			f.name, f.whole = name, text
		} else {
			f.others[name] = text
		}
	}
	return f
}

// use pushes, pops, acknowledges, puts off, buries, revives, forgets, cancels,
// pauses and moves what was pushed for later.
func use(t *testing.T, rdb *redis.Client) {
	t.Helper()
	ctx := t.Context()
	q, err := deferral.New(rdb, deferral.Config{Name: aofName, LockTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var errs []error
	did := func(err error) { errs = append(errs, err) }
	push := func(resource, id string, delay time.Duration) {
		_, err := q.Push(ctx, deferral.Write{Resource: resource, ID: id, Kind: "k", Payload: []byte("of " + id), Delay: delay})
		did(err)
	}
	pop := func() []*deferral.Delivery {
		ds, err := q.Pop(ctx, 10, 0)
		did(err)
		return ds
	}
	for i := range 3 {
		push("a", fmt.Sprint("a", i), 0)
		push("b", fmt.Sprint("b", i), 0)
		push("", fmt.Sprint("alone", i), 0)
	}
	push("a", "later", 10*time.Millisecond)
	push("c", "much later", time.Hour)
	cause := errors.New("told to fail")
	settle := []func(*deferral.Delivery) error{
		func(d *deferral.Delivery) error { return d.Ack(ctx) },
		func(d *deferral.Delivery) error { return d.Bury(ctx, cause) },
		func(d *deferral.Delivery) error { return d.Retry(ctx, 0, cause) },
	}
	for i := range 4 {
		for k, d := range pop() {
			did(settle[(i+k)%len(settle)](d))
		}
	}
	push("d", "d0", 0)
	did(q.CancelIn(ctx, "d", "d0"))
	did(q.CancelIn(ctx, "c", "much later"))
	did(q.Pause(ctx, "a", "for the test"))
	did(q.Resume(ctx, "a"))
	_, err = q.ReviveAll(ctx)
	did(err)
	push("", "last", 0)
	for _, d := range pop() {
		did(d.Bury(ctx, cause))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// command is one of the file: from where to where, and what.
type command struct {
	from, to int
	words    []string
}

// middle is a place in it.
func (c command) middle() int { return (c.from + c.to) / 2 }

// String is its name and the kind of its key.
func (c command) String() string {
	if len(c.words) < 2 {
		return c.words[0]
	}
	_, key, _ := strings.Cut(c.words[1], "}:")
	key, _, _ = strings.Cut(key, ":")
	return c.words[0] + " " + key
}

// transactions are the scripts of the file, from MULTI to EXEC, the first of each
// kind: those that sent the same commands to the same kinds of keys.
func (f *aof) transactions(t *testing.T) (list [][]command) {
	t.Helper()
	known := map[string]bool{}
	var tx []command
	for at := 0; at < len(f.whole); {
		c := parse(f.whole, at)
		at = c.to
		if name := strings.ToLower(c.words[0]); name == "multi" {
			tx = []command{c}
		} else if tx != nil {
			tx = append(tx, c)
			if kind := fmt.Sprint(tx); name == "exec" && !known[kind] {
				known[kind] = true
				list = append(list, tx)
			}
			if name == "exec" {
				tx = nil
			}
		}
	}
	if len(list) < 10 {
		t.Fatalf("%d kinds of scripts were recorded: the row proves little", len(list))
	}
	return list
}

// parse reads the command that begins at a byte. Arguments are skipped by their
// lengths: there may be anything in them.
func parse(b []byte, at int) command {
	c := command{from: at}
	number := func() (n int) {
		end := at + bytes.Index(b[at:], []byte("\r\n"))
		for _, digit := range b[at+1 : end] {
			n = 10*n + int(digit-'0')
		}
		at = end + 2
		return n
	}
	for range number() {
		n := number()
		c.words = append(c.words, string(b[at:at+n]))
		at += n + 2
	}
	c.to = at
	return c
}

// load starts the server on the first bytes of the file.
func (f *aof) load(t *testing.T, cut int) {
	t.Helper()
	f.redis.Kill()
	write := func(name string, text []byte) {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range f.others {
		write(name, text)
	}
	write(f.name, f.whole[:cut])
	f.redis.Start(t)
}

func (f *aof) problems(t *testing.T) []string {
	t.Helper()
	rdb := redis.NewClient(f.redis.Options())
	defer rdb.Close()
	problems, err := redistest.Problems(t.Context(), rdb, aofName)
	if err != nil {
		t.Fatal(err)
	}
	return problems
}
