package redistest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
)

const nul = "\x00"

// whole fills every kind of key of Name n, as the library leaves them.
func whole(t *testing.T, rdb *redis.Client) {
	t.Helper()
	ctx := t.Context()
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, "{n:0}:shards", "2", 0)
		p.Set(ctx, "{n:0}:clock", "1763200000000009 -5", 0)
		p.Set(ctx, "{n:0}:alive", "1", time.Minute)
		p.Set(ctx, "{n:0}:lock:acc:1", "token", time.Minute)
		// Two writes of one resource, of which the first was tried.
		p.ZAdd(ctx, "{n:0}:lane:acc:1", redis.Z{Score: 1763200000000007, Member: "w1"}, redis.Z{Score: 1763200000000008, Member: "w2"})
		p.Set(ctx, "{n:0}:write:acc:1"+nul+"w1", "payload", 0)
		p.Set(ctx, "{n:0}:write:acc:1"+nul+"w2", "payload", 0)
		p.HSet(ctx, "{n:0}:tries", "acc:1"+nul+"w1", "1 0 cause")
		// A write without a resource.
		p.ZAdd(ctx, "{n:0}:lane:"+nul+"w3", redis.Z{Score: 1763200000000009, Member: "w3"})
		p.Set(ctx, "{n:0}:write:"+nul+"w3", "payload", 0)
		p.ZAdd(ctx, "{n:0}:due", redis.Z{Score: 1763200000000007, Member: "acc:1"}, redis.Z{Score: 1763200000000009, Member: nul + "w3"})
		// One for later, one dead, and a lane that is paused.
		p.ZAdd(ctx, "{n:0}:later", redis.Z{Score: 1763200000000100, Member: "acc:2" + nul + "w4"})
		p.Set(ctx, "{n:0}:write:acc:2"+nul+"w4", "payload", 0)
		p.HSet(ctx, "{n:0}:tries", "acc:2"+nul+"w4", "1 0 cause")
		p.ZAdd(ctx, "{n:0}:dead", redis.Z{Score: 1763200000000001, Member: "acc:3" + nul + "w5"})
		p.HSet(ctx, "{n:0}:graves", "acc:3"+nul+"w5", "details")
		p.Set(ctx, "{n:0}:write:acc:3"+nul+"w5", "payload", 0)
		p.HSet(ctx, "{n:0}:paused", "acc:9", "reason")
		// Another shard, and what is none of Name n's business.
		p.Set(ctx, "{n:1}:clock", "7", 0)
		p.Set(ctx, "{n:1}:lock:}:write:\xff", "token", time.Minute)
		p.Set(ctx, "{nn:0}:rubbish", "", 0)
		p.Set(ctx, "foreign", "", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAuditFindsNothingWrongWithWhatIsWhole(t *testing.T) {
	judge := func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		redistest.Audit(t, rdb, "n")
		whole(t, rdb)
		redistest.Audit(t, rdb, "n")
		locks, err := redistest.Locks(t.Context(), rdb, "n")
		if want := []string{"acc:1", "}:write:\xff"}; err != nil || !slices.Equal(locks, want) {
			t.Errorf("locks %q, %v, want %q", locks, err, want)
		}
		if locks, err := redistest.Locks(t.Context(), rdb, "none"); err != nil || len(locks) != 0 {
			t.Errorf("locks of another name: %q, %v", locks, err)
		}
	}
	redistest.Each(t, judge)
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { judge(t, redistest.MiniInBubble(t)) })
	})
}

func TestAuditReadsEveryNodeOfACluster(t *testing.T) {
	node := redistest.Real(t, "--cluster-enabled", "yes")
	direct := node.Client(t)
	if err := direct.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Wait(t, "the cluster to form", func() bool {
		return strings.Contains(direct.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	whole(t, direct)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Addr()}})
	defer rdb.Close()
	redistest.Audit(t, rdb, "n")
	direct.Persist(t.Context(), "{n:0}:lock:acc:1")
	if problems, err := redistest.Problems(t.Context(), rdb, "n"); err != nil || len(problems) != 1 {
		t.Errorf("problems %q, %v", problems, err)
	}
}

func TestAuditFindsEachProblem(t *testing.T) {
	ref := func(resource, id string) string { return resource + nul + id }
	z := func(member string, score float64) redis.Z { return redis.Z{Score: score, Member: member} }
	const now = 1763200000000005
	for _, tt := range []struct {
		plant func(ctx context.Context, p redis.Pipeliner)
		want  string // a part of the only problem reported
	}{
		{func(ctx context.Context, p redis.Pipeliner) { p.Persist(ctx, "{n:0}:lock:acc:1") }, `lock:acc:1" has no TTL`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Persist(ctx, "{n:0}:alive") }, `alive" has no TTL`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Expire(ctx, "{n:0}:due", time.Hour) }, `due" has a TTL`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Expire(ctx, "{n:0}:write:"+ref("", "w3"), time.Hour) }, `w3" has a TTL`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZRem(ctx, "{n:0}:due", "acc:1") }, `lane "acc:1" is not in due`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZAdd(ctx, "{n:0}:due", z("acc:8", now)) }, `due has lane "acc:8", which is empty`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Do(ctx, "zadd", "{n:0}:due", "inf", "acc:1") }, `due has "acc:1" at "inf"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZAdd(ctx, "{n:0}:later", z(ref("acc:2", "w4"), 1.5)) }, `at "1.5", which is no moment`},
		{func(ctx context.Context, p redis.Pipeliner) {
			p.ZAdd(ctx, "{n:0}:lane:acc:1", z("w1", 1763200000000008))
		}, `"w1" and "w2" both have the stamp 1763200000000008`},
		{func(ctx context.Context, p redis.Pipeliner) {
			p.ZAdd(ctx, "{n:0}:lane:acc:1", z("w1", 1763200000000010))
		}, `the stamp 1763200000000010, after the clock's`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZAdd(ctx, "{n:0}:lane:acc:1", z("w1", 0.5)) }, `"w1" has the stamp "0.5"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZAdd(ctx, "{n:0}:lane:acc:1", z("w6", now)) }, `w6" is in lane "acc:1" and has no payload`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZRem(ctx, "{n:0}:lane:acc:1", "w2") }, `w2" has a payload and no place`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Del(ctx, "{n:0}:write:"+ref("", "w3")) }, `w3" is in lane "\x00w3" and has no payload`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Del(ctx, "{n:0}:write:"+ref("acc:2", "w4")) }, `w4" is in later and has no payload`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Del(ctx, "{n:0}:write:"+ref("acc:3", "w5")) }, `w5" is in dead and has no payload`},
		{func(ctx context.Context, p redis.Pipeliner) { p.ZAdd(ctx, "{n:0}:later", z(ref("acc:1", "w1"), now)) }, `w1" is in lane "acc:1" and later`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Set(ctx, "{n:0}:write:"+ref("acc:1", "w7"), "", 0) }, `w7" has a payload and no place`},
		{func(ctx context.Context, p redis.Pipeliner) { p.HDel(ctx, "{n:0}:graves", ref("acc:3", "w5")) }, `w5" is dead and has no grave`},
		{func(ctx context.Context, p redis.Pipeliner) { p.HSet(ctx, "{n:0}:graves", ref("acc:1", "w1"), "") }, `w1" has nobody dead`},
		{func(ctx context.Context, p redis.Pipeliner) { p.HSet(ctx, "{n:0}:tries", ref("acc:3", "w5"), "") }, `tries has "acc:3\x00w5"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.HSet(ctx, "{n:0}:tries", ref("acc:1", "w8"), "") }, `tries has "acc:1\x00w8"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Set(ctx, "{n:0}:inflight", "", 0) }, `unknown key "{n:0}:inflight"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Set(ctx, "{n:0}:lease:acc:1", "", 0) }, `unknown key "{n:0}:lease:acc:1"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Set(ctx, "{n:x}:clock", "", 0) }, `unknown key "{n:x}:clock"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.Set(ctx, "{n:1}:shards", "2", 0) }, `unknown key "{n:1}:shards"`},
		{func(ctx context.Context, p redis.Pipeliner) { p.SAdd(ctx, "{n:1}:due", "acc:1") }, `due" is a set, not a zset`},
	} {
		t.Run(tt.want, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				rdb := s.Client(t)
				whole(t, rdb)
				if _, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
					tt.plant(t.Context(), p)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				problems, err := redistest.Problems(t.Context(), rdb, "n")
				if err != nil || len(problems) != 1 || !strings.Contains(problems[0], tt.want) {
					t.Errorf("%v, problems:\n%s", err, strings.Join(problems, "\n"))
				}
			})
		})
	}
}

func TestAuditFindsWhatOnePlantedProblemCannotShow(t *testing.T) {
	s := redistest.Mini(t)
	rdb := s.Client(t)
	whole(t, rdb)
	ctx := t.Context()
	if _, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, "{n:0}:clock")
		p.ZAdd(ctx, "{n:0}:lane:"+nul+"w3", redis.Z{Score: 1763200000000001, Member: "w9"})
		p.ZAdd(ctx, "{n:1}:lane:acc:1", redis.Z{Score: 5, Member: "w1"})
		p.Set(ctx, "{n:0}:write:nameless", "", 0)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	problems, err := redistest.Problems(ctx, rdb, "n")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(problems, "\n")
	for _, want := range []string{
		`has stamps and the clock says ""`,
		`lane "\x00w3" has write "w9", which does not belong there`,
		`lane "acc:1" is in shard 0 too`,
		`payload key "nameless" names no write`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no problem says %s:\n%s", want, all)
		}
	}
}

// judged is a test that Audit is called in and that may fail.
type judged struct {
	testing.TB
	errors []string
}

func (j *judged) Errorf(format string, args ...any) {
	j.errors = append(j.errors, fmt.Sprintf(format, args...))
}

func TestAuditFailsTheTest(t *testing.T) {
	s := redistest.Mini(t)
	rdb := s.Client(t)
	whole(t, rdb)
	rdb.Persist(t.Context(), "{n:0}:lock:acc:1")
	j := &judged{TB: t}
	redistest.Audit(j, rdb, "n")
	if len(j.errors) != 1 || !strings.Contains(j.errors[0], `audit of "n"`) {
		t.Errorf("reported %q", j.errors)
	}
}
