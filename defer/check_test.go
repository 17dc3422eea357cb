package deferral_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
)

// find returns the findings with a code.
func find(findings []deferral.Finding, code string) []deferral.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f deferral.Finding) bool { return f.Code != code })
}

// expect fails the test unless exactly one finding has the code and severity,
// and a text with each of the parts.
func expect(t *testing.T, findings []deferral.Finding, severity deferral.Severity, code string, parts ...string) {
	t.Helper()
	f := find(findings, code)
	if len(f) != 1 || f[0].Severity != severity {
		t.Errorf("want one %s %s: %v", severity, code, findings)
		return
	}
	for _, part := range parts {
		if !strings.Contains(f[0].Text, part) {
			t.Errorf("%s does not say %q: %s", code, part, f[0].Text)
		}
	}
}

func (q operated) check() []deferral.Finding {
	q.t.Helper()
	findings, err := q.Check(q.t.Context())
	if err != nil {
		q.t.Fatal(err)
	}
	return findings
}

// durable starts a Redis in which Check finds nothing wrong.
func durable(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	return redistest.Real(t, append([]string{"--appendonly", "yes"}, args...)...)
}

func TestCheckFindsNothingWrongWithWhatIsInOrder(t *testing.T) {
	q := operate(t, durable(t).Client(t), deferral.Config{Shards: 3})
	for i := range 2 {
		if f := q.check(); len(f) != 0 {
			t.Errorf("%v", f)
		}
		if keys := q.rdb.Keys(t.Context(), "*check*").Val(); len(keys) != 0 {
			t.Errorf("left behind: %q", keys)
		}
		crowd(t, q, 0, 20)
		q.bury("old", "", fmt.Sprint(i))
		q.pushLater("acc", fmt.Sprint("later", i), time.Hour)
		q.enter(fmt.Sprint("acc:", i), 1).Lease().End()
	}
}

func TestCheckSaysWhatAServerDoesNotTell(t *testing.T) {
	q := operate(t, redistest.Mini(t).Client(t), deferral.Config{})
	findings := q.check()
	if len(findings) == 0 {
		t.Error("a miniredis tells everything")
	}
	for _, f := range findings {
		if f.Severity != deferral.Warning || f.Code != deferral.CodeNotChecked {
			t.Errorf("%v", f)
		}
	}
}

func TestCheckLooksAtHowRedisIsSetUp(t *testing.T) {
	for _, tt := range []struct {
		name     string
		args     []string
		cfg      deferral.Config
		severity deferral.Severity
		code     string
		says     string
	}{
		{"eviction of all", []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, deferral.Config{}, deferral.Problem, deferral.CodeEviction, "waiting writes"},
		{"eviction of locks", []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"}, deferral.Config{}, deferral.Problem, deferral.CodeEviction, "locks"},
		{"eviction to come", []string{"--maxmemory-policy", "allkeys-lru"}, deferral.Config{}, deferral.Warning, deferral.CodeEviction, "allkeys-lru"},
		{"nothing kept", []string{"--appendonly", "no"}, deferral.Config{}, deferral.Problem, deferral.CodeNoPersistence, "restart"},
		{"snapshots", []string{"--appendonly", "no", "--save", "60 1"}, deferral.Config{}, deferral.Warning, deferral.CodeNoPersistence, "60 1"},
		{"fsync", []string{"--appendfsync", "no"}, deferral.Config{}, deferral.Warning, deferral.CodeFsync, "power cut"},
		{"replicas", nil, deferral.Config{Replicas: 1}, deferral.Problem, deferral.CodeReplicas, "Config.Replicas is 1"},
		{"min-replicas", []string{"--min-replicas-to-write", "1"}, deferral.Config{}, deferral.Problem, deferral.CodeMinReplicas, "refuses"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := operate(t, durable(t, tt.args...).Client(t), tt.cfg)
			findings, err := q.CheckSetup(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			expect(t, findings, tt.severity, tt.code, tt.says)
			if tt.name != "min-replicas" && len(findings) != 1 {
				t.Errorf("%v", findings)
			}
		})
	}
}

func TestCheckKnowsAReplicaAndItsPrimary(t *testing.T) {
	primary := durable(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(primary.Addr(), ":")
	second := durable(t, "--replicaof", host+" "+port)
	redistest.Wait(t, "the replica to connect", func() bool {
		return strings.Contains(second.Client(t).Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	expect(t, operate(t, second.Client(t), deferral.Config{}).check(), deferral.Problem, deferral.CodeReadOnly)
	expect(t, operate(t, primary.Client(t), deferral.Config{Replicas: 1}).check(), deferral.Warning, deferral.CodeMinReplicas, "cut off")
}

// twoMasters starts a Redis Cluster whose slots are shared by two.
func twoMasters(t *testing.T) *redis.ClusterClient {
	t.Helper()
	var servers []*redis.Client
	var addrs []string
	for _, slots := range [][2]int{{0, 8191}, {8192, 16383}} {
		s := durable(t, "--cluster-enabled", "yes")
		c := s.Client(t)
		if err := c.ClusterAddSlotsRange(t.Context(), slots[0], slots[1]).Err(); err != nil {
			t.Fatal(err)
		}
		servers, addrs = append(servers, c), append(addrs, s.Addr())
	}
	host, port, _ := strings.Cut(addrs[1], ":")
	if err := servers[0].ClusterMeet(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range servers {
		redistest.Wait(t, "the cluster to form", func() bool {
			info := c.ClusterInfo(t.Context()).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:2")
		})
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestOnAClusterAllMastersAreLookedAt(t *testing.T) {
	q := operate(t, twoMasters(t), deferral.Config{Shards: 6})
	for i := range 12 {
		q.push(fmt.Sprint("acc:", i), fmt.Sprint("w", i))
		q.bury(fmt.Sprint("old:", i), "", fmt.Sprint("dead", i))
	}
	for i := range 12 {
		if it, err := q.Lookup(t.Context(), fmt.Sprint("w", i)); err != nil || it.Resource != fmt.Sprint("acc:", i) {
			t.Errorf("%+v, %v", it, err)
		}
	}
	if err := q.Cancel(t.Context(), "w0"); err != nil {
		t.Error(err)
	}
	if n, err := q.ReviveAll(t.Context()); err != nil || n != 12 {
		t.Errorf("revived %d, %v", n, err)
	}
	if s, err := q.Stats(t.Context()); err != nil || s.Waiting != 23 || len(q.lanes()) != 23 {
		t.Errorf("%+v, %v", s, err)
	}
	expect(t, q.check(), deferral.Warning, deferral.CodeClusterReload)

	q.rdb.Set(t.Context(), "{accounts:1}:lock:endless", "foreign", 0)
	q.rdb.Set(t.Context(), "{accounts:2}:lock:endless", "foreign", 0)
	if err := q.rdb.(*redis.ClusterClient).ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		return c.ConfigSet(ctx, "appendfsync", "no").Err()
	}); err != nil {
		t.Fatal(err)
	}
	findings := q.check()
	if f := find(findings, deferral.CodeFsync); len(f) != 2 || f[0].Text == f[1].Text {
		t.Errorf("each master has its own finding: %v", findings)
	}
	expect(t, findings, deferral.Problem, deferral.CodeEndlessLock, "2 locks")
	q.rdb.Del(t.Context(), "{accounts:1}:lock:endless")
	q.rdb.Del(t.Context(), "{accounts:2}:lock:endless")
}

func TestCheckLooksAtTheClient(t *testing.T) {
	s := durable(t)
	q := operate(t, s.ClientWith(t, func(o *redis.Options) { o.ContextTimeoutEnabled = false }), deferral.Config{})
	expect(t, q.check(), deferral.Warning, deferral.CodeContextTimeout)
}

func TestCheckComparesTheClocks(t *testing.T) {
	s := redistest.Mini(t)
	q := operate(t, s.Client(t), deferral.Config{})
	if f := find(q.check(), deferral.CodeClockOffset); len(f) != 0 {
		t.Errorf("%v", f)
	}
	s.Mini().SetTime(time.Now().Add(time.Hour))
	q.push("acc", "w")
	expect(t, q.check(), deferral.Warning, deferral.CodeClockOffset)
	s.Mini().SetTime(time.Now())
	expect(t, q.check(), deferral.Warning, deferral.CodeClockAhead)
}

func TestCheckFindsKeysThatDoNotFit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		q, err := deferral.New(rdb, deferral.Config{Name: "accounts"})
		if err != nil {
			t.Fatal(err)
		}
		o := operated{q, t, rdb}
		for i := range 20 { // deep enough to be gone through in steps
			o.push("deep", fmt.Sprint("w", i))
		}
		o.push("shallow", "w")
		o.push("", "lone")
		o.push("lost lane", "w")
		o.pushLater("acc", "later", time.Hour)
		o.bury("acc", "", "dead")
		pipe := rdb.Pipeline()
		for _, ref := range []string{"deep\x00w7", "shallow\x00w", "\x00lone", "acc\x00later", "acc\x00dead"} {
			pipe.Del(t.Context(), "{accounts:0}:write:"+ref)
		}
		pipe.ZRem(t.Context(), "{accounts:0}:due", "lost lane")
		for i := range 7 {
			pipe.Set(t.Context(), fmt.Sprint("{accounts:0}:lock:endless-", i), "foreign", 0)
		}
		pipe.Set(t.Context(), "{accounts:0}:write:stray\x00w", "secret", 0)
		pipe.Set(t.Context(), "{accounts:0}:write:nameless", "secret", 0)
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		findings := o.check()
		expect(t, findings, deferral.Problem, deferral.CodeMissingPayload, "5 writes", `"deep\x00w7"`, `"shallow\x00w"`, `"\x00lone"`, `"acc\x00later"`, `"acc\x00dead"`)
		expect(t, findings, deferral.Problem, deferral.CodeNotIndexed, "1 lanes", `"lost lane"`)
		expect(t, findings, deferral.Problem, deferral.CodeEndlessLock, "7 locks", `"endless-`, "and others")
		expect(t, findings, deferral.Warning, deferral.CodeStrayPayload, "2 payloads", `"stray\x00w"`, `"nameless"`)
		if text := fmt.Sprint(findings); strings.Contains(text, "secret") || strings.Contains(text, "payload of w") {
			t.Errorf("a payload is shown: %s", text)
		}
	})
}

func TestCheckOfAnotherNumberOfShards(t *testing.T) {
	onEachServer(t, deferral.Config{Shards: 2}, func(t *testing.T, q operated) {
		q.push("acc", "w")
		expect(t, operate(t, q.rdb, deferral.Config{Shards: 3}).check(), deferral.Problem, deferral.CodeShards, "3")
	})
}

func TestCheckFailsOnlyWhenRedisCannotBeReached(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q, err := deferral.New(s.Client(t), deferral.Config{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.Check(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		s.Kill(t)
		if _, err := q.Check(t.Context()); err == nil {
			t.Error("a dead Redis was checked")
		}
	})
}

// as returns a client of a user with these rights.
func as(t *testing.T, s *redistest.Server, rights ...any) *redis.Client {
	t.Helper()
	admin := s.Client(t)
	args := append([]any{"acl", "setuser", "app", "reset", "on", ">pw"}, rights...)
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return s.ClientWith(t, func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
}

// called is every command that our Lua scripts call.
func called(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{".", "../lock", "../internal/script"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.lua"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
		}
	}
	var names []string
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// needed are the commands that a user of everything has to have.
func needed(t *testing.T) []string {
	return append(called(t), "EVAL", "EVALSHA", "MGET", "GETRANGE", "MSETNX", "MSET", "SCAN", "ZSCAN", "HSCAN", "HLEN", "SUBSCRIBE")
}

func TestCheckNamesTheRightThatIsMissing(t *testing.T) {
	s := durable(t)
	all := []any{"~{accounts:*", "&{accounts:*", "-@all", "+ping", "+hello", "+info", "+config|get"}
	for _, name := range needed(t) {
		all = append(all, "+"+strings.ToLower(name))
	}
	q := operate(t, s.Client(t), deferral.Config{}) // for the audit
	check := func(rights []any) []deferral.Finding {
		t.Helper()
		user, err := deferral.New(as(t, s, rights...), deferral.Config{Name: q.Name()})
		if err != nil {
			t.Fatal(err)
		}
		findings, err := user.CheckSetup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return findings
	}
	if f := check(all); len(f) != 0 {
		t.Errorf("with all rights: %v", f)
	}
	warnings := []string{"PUBLISH", "SUBSCRIBE", "GETRANGE", "MSETNX", "MSET", "SCAN", "ZSCAN", "HSCAN", "HLEN"}
	for _, name := range needed(t) {
		findings := check(append(slices.Clone(all), "-"+strings.ToLower(name)))
		severity := deferral.Problem
		if slices.Contains(warnings, name) {
			severity = deferral.Warning
		}
		named := func(f deferral.Finding) bool {
			return f.Severity == severity && (f.Code == deferral.CodeRights || f.Code == deferral.CodeRefused) && strings.Contains(strings.ToUpper(f.Text), name)
		}
		if !slices.ContainsFunc(findings, named) {
			t.Errorf("without %s: %v", name, findings)
		}
		if keys := q.rdb.Keys(t.Context(), "*check*").Val(); len(keys) != 0 && name != "DEL" {
			t.Errorf("without %s there is left: %q", name, keys)
		}
		for _, key := range q.rdb.Keys(t.Context(), "*check*").Val() {
			if ttl := q.rdb.PTTL(t.Context(), key).Val(); ttl <= 0 {
				t.Errorf("without %s key %q stays for ever", name, key)
			}
			q.rdb.Del(t.Context(), key)
		}
	}
}

func TestCheckNamesTheScriptsThatNeedARight(t *testing.T) {
	s := durable(t)
	q := operate(t, as(t, s, "~*", "&*", "+@all", "-zrank"), deferral.Config{})
	expect(t, q.check(), deferral.Problem, deferral.CodeRights, "ZRANK", "lookup.lua")
}

func TestCheckKnowsKeysAndChannelsThatAreNotAllowed(t *testing.T) {
	s := durable(t)
	keys := operate(t, s.Client(t), deferral.Config{})
	q, err := deferral.New(as(t, s, "~{other:*", "&*", "+@all"), deferral.Config{Name: keys.Name()})
	if err != nil {
		t.Fatal(err)
	}
	findings, err := q.CheckSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rights := find(findings, deferral.CodeRights)
	if len(rights) != 1 || rights[0].Severity != deferral.Problem || !strings.Contains(rights[0].Text, "~{accounts:*") {
		t.Errorf("keys: %v", findings)
	}
	q2 := operate(t, as(t, s, "~{accounts:*", "resetchannels", "+@all"), deferral.Config{})
	rights = find(q2.check(), deferral.CodeRights)
	if len(rights) != 2 || rights[0].Severity != deferral.Warning || !strings.Contains(rights[0].Text, "PUBLISH") || !strings.Contains(rights[1].Text, "SUBSCRIBE") {
		t.Errorf("channels: %v", rights)
	}
	q3 := operate(t, as(t, s, "~*", "&*", "+@all", "-wait"), deferral.Config{Replicas: 1})
	findings = q3.check()
	expect(t, findings, deferral.Problem, deferral.CodeRights, "WAIT", "Config.Replicas")
}

func TestWhatCannotBeLookedAtIsAWarning(t *testing.T) {
	s := durable(t)
	q := operate(t, as(t, s, "~*", "&*", "+@all", "-info", "-config", "-time", "-ping"), deferral.Config{})
	findings := q.check()
	if n := len(find(findings, deferral.CodeNotChecked)); n != 3 {
		t.Errorf("want INFO, CONFIG and TIME: %v", findings)
	}
	expect(t, findings, deferral.Problem, deferral.CodeRights, "TIME")
}

func TestCheckFindsScriptsRefusedForAnotherReason(t *testing.T) {
	s := durable(t, "--maxmemory", "100mb")
	q := operate(t, s.Client(t), deferral.Config{})
	q.rdb.ConfigSet(t.Context(), "maxmemory", "1")
	expect(t, q.check(), deferral.Problem, deferral.CodeRefused, "push.lua", "OOM")
	q.rdb.ConfigSet(t.Context(), "maxmemory", "0")
}

func TestCheckSetupDoesNotDependOnWhatWaits(t *testing.T) {
	s := durable(t)
	q := operate(t, s.Client(t), deferral.Config{})
	cost := func() int64 {
		before := s.Commands(t)
		if f, err := q.CheckSetup(t.Context()); err != nil || len(f) != 0 {
			t.Errorf("%v, %v", f, err)
		}
		return s.Commands(t) - before
	}
	cost()
	few := cost()
	crowd(t, q, 0, 500)
	if many := cost(); many > few+2 {
		t.Errorf("%d commands with an empty queue, %d with 500 lanes", few, many)
	}
}

func TestANameTooLongForAKeySpaceBesideIt(t *testing.T) {
	q := operate(t, durable(t).Client(t), deferral.Config{Name: strings.Repeat("n", 128)})
	expect(t, q.check(), deferral.Warning, deferral.CodeNotChecked, "Name")
}
