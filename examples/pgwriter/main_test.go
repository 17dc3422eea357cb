package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

// wholeKey makes a process of the test binary the whole program. It holds its
// arguments.
const wholeKey = "PGWRITER_TEST_ARGS"

// TestMain lets the test binary be a worker process, or the whole program, as
// the program itself would be.
func TestMain(m *testing.M) {
	if os.Getenv(processKey) != "" {
		main()
		os.Exit(0)
	}
	if args := os.Getenv(wholeKey); args != "" {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
	}
	os.Exit(m.Run())
}

// small is a load that is done in a second or two.
var small = []string{"-processes", "2", "-writers", "4", "-resources", "10", "-writes", "400", "-kill", "1", "-handler", "4ms"}

func TestEveryAcceptedWriteIsProvedThoughAProcessIsKilled(t *testing.T) {
	var out, problems bytes.Buffer
	if code := run(t.Context(), small, &out, &problems); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, &out, &problems)
	}
	for _, want := range []string{"400 writes were accepted", "Processes killed and replaced: 1.", "Proved:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, &out)
		}
	}
}

// Nothing but the plain recipe's lack of order is at work here: that it also
// loses writes depends on when a process is killed.
func TestPlainRecipeIsSeenToLetWritesOvertake(t *testing.T) {
	var out, problems bytes.Buffer
	args := append(small, "-naive", "-resources", "2", "-writes", "200")
	if code := run(t.Context(), args, &out, &problems); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, &out, &problems)
	}
	if !regexp.MustCompile(`WRONG  \d+ writes overtook`).MatchString(out.String()) {
		t.Errorf("no write is said to have overtaken another one:\n%s", &out)
	}
}

func TestServersThatWereThereAreLeftAsTheyWere(t *testing.T) {
	ctx := t.Context()
	cache, database := start(t)
	t.Setenv("REDIS_URL", cache.URL)
	t.Setenv("DATABASE_URL", database.URL)
	for _, extra := range [][]string{nil, {"-naive"}} {
		var out, problems bytes.Buffer
		if code := run(ctx, append(small, extra...), &out, &problems); code != 0 {
			t.Fatalf("exit code %d\n%s%s", code, &out, &problems)
		}
	}
	opts, err := redis.ParseURL(cache.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	if keys, err := rdb.Keys(ctx, "*").Result(); err != nil || len(keys) > 0 {
		t.Errorf("Redis still has %q (%v)", keys, err)
	}
	db, err := pgx.Connect(ctx, database.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	var tables []string
	err = db.QueryRow(ctx, `SELECT coalesce(array_agg(schemaname || '.' || tablename), '{}') FROM pg_tables
		WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`).Scan(&tables)
	if err != nil || len(tables) > 0 {
		t.Errorf("Postgres still has %q (%v)", tables, err)
	}
}

func TestNothingIsLeftAfterCtrlC(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Log("there is no Ctrl-C for one process alone here")
		return
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // root's Postgres runs as another user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, wholeKey+"=-writes 100000", "REDIS_URL=", "DATABASE_URL=")
	out := &firstMatch{of: regexp.MustCompile(`(?m)^written .*$`), seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	select {
	case <-out.seen:
	case err := <-gone:
		t.Fatalf("it ended by itself: %v\n%s", err, out)
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		t.Fatalf("it does not get going:\n%s", out)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-gone
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130\n%s", code, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v (%v)", left, err)
	}
	if port := regexp.MustCompile(`started on port (\d+)`).FindStringSubmatch(out.String()); port != nil {
		if conn, err := net.Dial("tcp", "127.0.0.1:"+port[1]); err == nil {
			conn.Close()
			t.Error("the redis-server is still there")
		}
	}
	if left := processesOf(t, dir); left != "" {
		t.Errorf("still running:\n%s", left)
	}
}

// processesOf lists, on Linux, the processes that have dir in their command
// line or their environment.
func processesOf(t *testing.T, dir string) string {
	left := ""
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline")) // an error: it has just ended
		environ, _ := os.ReadFile(filepath.Join(p, "environ"))
		if bytes.Contains(cmdline, []byte(dir)) || bytes.Contains(environ, []byte("TMPDIR="+dir)) {
			left += fmt.Sprintf("%s: %q\n", p, cmdline)
		}
	}
	return left
}

// firstMatch closes seen when what was written matches for the first time.
type firstMatch struct {
	servers.Tail
	of   *regexp.Regexp
	seen chan struct{}
	done bool
}

// Write is called by one goroutine only.
func (f *firstMatch) Write(p []byte) (int, error) {
	n, err := f.Tail.Write(p)
	if !f.done && f.of.MatchString(f.String()) {
		f.done = true
		close(f.seen)
	}
	return n, err
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-processes", "0"}, {"-writers", "-1"}, {"-resources", "0"}, {"-skew", "NaN"}, {"-writes", "0"},
		{"-batch", "1001"}, {"-lookback", "2h"}, {"-handler", "-1s"}, {"-kill", "-1"}, {"-unheard"}, {"argument"},
	} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), args, &out, &problems); code != 2 || problems.Len() == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, &problems)
		}
	}
}

// start starts both servers for a test.
func start(t *testing.T) (cache, database *servers.Server) {
	t.Helper()
	cache, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Stop)
	database, err = servers.Postgres(t.Context(), func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Stop)
	return cache, database
}

func TestTheSameSeedMakesTheSameWrites(t *testing.T) {
	l := load{Processes: 3, Writers: 2, Resources: 5, Skew: 1, Writes: 1000, Seed: 7}
	a, b := newLoad(l), newLoad(l)
	ids, hot := map[string]bool{}, 0
	for writer := range l.writers() {
		for seq := 1; seq <= a.share(writer); seq++ {
			c := a.of(writer, seq)
			if c != b.of(writer, seq) {
				t.Fatalf("write %d of writer %d is not the same again", seq, writer)
			}
			ids[c.ID] = true
			if c.Account == "account-1" {
				hot++
			}
		}
	}
	if len(ids) != l.Writes {
		t.Errorf("%d different writes, want %d", len(ids), l.Writes)
	}
	if want := a.hottest() * float64(l.Writes); float64(hot) < 0.8*want || float64(hot) > 1.2*want {
		t.Errorf("%d writes to the hottest account, want about %.0f", hot, want)
	}
}

// A process that takes over has to begin with the write that its predecessor
// was not known to have got accepted, not behind it.
func TestReplacementGoesOnWhereTheLogEnds(t *testing.T) {
	f, err := newFleet(job{Load: load{Processes: 1, Writers: 1, Writes: 3}})
	if err != nil {
		t.Fatal(err)
	}
	f.heard(line{What: saidCall, Seq: 1, At: 1})
	f.heard(line{What: saidReturn, Seq: 1, At: 2})
	f.heard(line{What: saidCall, Seq: 2, At: 3})
	if next := f.jobOf(0).Next; len(next) != 1 || next[0] != 2 {
		t.Errorf("it begins with %v, want 2", next)
	}
	f.heard(line{What: saidCall, Seq: 2, At: 4})
	if f.submissions[0][1].called != 3 {
		t.Error("the first call of a write is what counts")
	}
	if got := f.tally(); got.accepted != 1 || got.again != 1 {
		t.Errorf("%+v, want 1 accepted and 1 submitted again", got)
	}
}

func TestClockThatIsSetBackIsNoticed(t *testing.T) {
	for _, c := range []struct{ passed, wall, want time.Duration }{
		{time.Second, time.Second, 0},
		{time.Second, time.Hour, 0}, // set forward: what came first is still first
		{time.Second, time.Second - 100*time.Microsecond, 0},
		{time.Second, -time.Hour, time.Hour + time.Second},
		{time.Second, 900 * time.Millisecond, 100 * time.Millisecond},
	} {
		if got := steppedBack(c.passed, c.wall); got != c.want {
			t.Errorf("%v passed and %v by the wall clock: set back by %v, want %v", c.passed, c.wall, got, c.want)
		}
	}
}

func TestLinesAreWhatTheParentReads(t *testing.T) {
	var out bytes.Buffer
	p := &submitters{out: &out}
	p.say(line{What: saidError, Error: strings.Repeat("x", 10_000)})
	if out.Len() > 4096 {
		t.Errorf("a line of %d bytes does not go through a pipe in one piece", out.Len())
	}
	var l line
	if err := json.Unmarshal(out.Bytes(), &l); err != nil || l.What != saidError {
		t.Errorf("%v %+v", err, l)
	}
}
