package redistest

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Audit fails the test for every invariant of the key space of name that does
// not hold. The keys of one node are read in one instant, so it may be called
// while others work. It does not use the packages it judges.
func Audit(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	problems, err := Problems(ctx, rdb, name)
	if err != nil {
		t.Fatalf("redistest: audit of %q: %v", name, err)
	}
	for _, p := range problems {
		t.Errorf("redistest: audit of %q: %s", name, p)
	}
}

// Problems returns what is wrong with the keys of name, in a stable order, one
// sentence each, and nothing if all is well.
func Problems(ctx context.Context, rdb redis.UniversalClient, name string) ([]string, error) {
	keys, err := read(ctx, rdb, name)
	if err != nil {
		return nil, err
	}
	a := audit{prefix: "{" + name + ":", shards: map[string]*shard{}}
	for _, k := range keys {
		a.sort(k)
	}
	laneShard := map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(a.shards)) {
		s := a.shards[id]
		a.check(id, s)
		for _, lane := range slices.Sorted(maps.Keys(s.lanes)) {
			if other, twice := laneShard[lane]; twice {
				a.complain(id, "lane %q is in shard %s too", lane, other)
			}
			laneShard[lane] = id
		}
	}
	return a.problems, nil
}

// Locks returns the lanes of name whose lock is held now, in order.
func Locks(ctx context.Context, rdb redis.UniversalClient, name string) ([]string, error) {
	keys, err := read(ctx, rdb, name)
	if err != nil {
		return nil, err
	}
	var locks []string
	for _, k := range keys {
		_, rest, _ := strings.Cut(strings.TrimPrefix(k.name, "{"+name+":"), "}:")
		if lane, is := strings.CutPrefix(rest, "lock:"); is {
			locks = append(locks, lane)
		}
	}
	return locks, nil
}

// key is one key as audit.lua found it.
type key struct {
	name, kind string
	ttl        time.Duration // negative: none
	content    []string
}

// pairs returns the content of a Hash or ZSET.
func (k key) pairs() map[string]string {
	m := make(map[string]string, len(k.content)/2)
	for pair := range slices.Chunk(k.content, 2) {
		m[pair[0]] = pair[1]
	}
	return m
}

//go:embed audit.lua
var auditLua string

// read returns all keys of name, sorted.
func read(ctx context.Context, rdb redis.UniversalClient, name string) ([]key, error) {
	var mu sync.Mutex // guards keys: a cluster's nodes are read at once
	var keys []key
	node := func(ctx context.Context, rdb redis.Scripter) error {
		reply, err := rdb.Eval(ctx, auditLua, nil, "{"+name+":").Slice()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, entry := range reply {
			k, err := parseKey(entry)
			if err != nil {
				return err
			}
			keys = append(keys, k)
		}
		return nil
	}
	err := error(nil)
	if cluster, is := rdb.(*redis.ClusterClient); is {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return node(ctx, c) })
	} else {
		err = node(ctx, rdb)
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.name, b.name) })
	return keys, err
}

func parseKey(entry any) (key, error) {
	fields, _ := entry.([]any)
	if len(fields) != 4 {
		return key{}, fmt.Errorf("audit.lua replied %v", entry)
	}
	name, _ := fields[0].(string)
	kind, _ := fields[1].(string)
	ttl, isNumber := fields[2].(int64)
	content, isList := fields[3].([]any)
	if !isNumber || !isList {
		return key{}, fmt.Errorf("audit.lua replied %v", entry)
	}
	k := key{name: name, kind: kind, ttl: time.Duration(ttl) * time.Millisecond}
	for _, c := range content {
		k.content = append(k.content, fmt.Sprint(c))
	}
	return k, nil
}

// number parses a score or a clock. It reports false for what is no finite
// whole number.
func number(s string) (int64, bool) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || f != math.Trunc(f) {
		return 0, false
	}
	return int64(f), true
}
