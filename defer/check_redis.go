package deferral

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// server looks at how a server is set up. It says whether the server takes
// writes.
func (c *checkup) server(ctx context.Context, n node) (writable bool, err error) {
	info, err := c.info(ctx, n)
	if err != nil {
		return false, err
	}
	config, err := c.config(ctx, n)
	if err != nil {
		return false, err
	}
	c.version(info["redis_version"])
	c.eviction(info["maxmemory_policy"], info["maxmemory"])
	c.persistence(info, config)
	if info["role"] == "slave" {
		c.add(Problem, CodeReadOnly, "the server is a replica: nothing can be stored there")
		return false, nil
	}
	c.replicas(info, config)
	return true, nil
}

// info reads INFO. A field that the server does not have is missing.
func (c *checkup) info(ctx context.Context, n node) (map[string]string, error) {
	text, err := n.rdb.Info(ctx).Result()
	if err != nil {
		return nil, c.refused("the version, memory, persistence and replication of Redis", err)
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if field, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[field] = value
		}
	}
	var missing []string
	for _, field := range []string{"redis_version", "maxmemory_policy", "aof_enabled", "role"} {
		if info[field] == "" {
			missing = append(missing, field)
		}
	}
	if missing != nil {
		c.add(Warning, CodeNotChecked, "not everything could be checked: INFO says nothing of %s", strings.Join(missing, ", "))
	}
	return info, nil
}

// config reads the settings that INFO does not tell. One that Redis does not
// tell is missing.
func (c *checkup) config(ctx context.Context, n node) (map[string]string, error) {
	config := map[string]string{}
	pipe := n.rdb.Pipeline()
	var got []*redis.MapStringStringCmd
	for _, name := range []string{"save", "appendfsync", "min-replicas-to-write"} {
		got = append(got, pipe.ConfigGet(ctx, name))
	}
	_, err := pipe.Exec(ctx)
	for _, cmd := range got {
		for name, value := range cmd.Val() {
			config[name] = value
		}
	}
	if err != nil {
		return config, c.refused("snapshots, fsync and min-replicas-to-write (CONFIG GET)", err)
	}
	return config, nil
}

func (c *checkup) version(v string) {
	var major, minor int
	if _, err := fmt.Sscanf(v, "%d.%d", &major, &minor); err != nil {
		return // info has said that it is missing
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		c.add(Problem, CodeVersion, "the server is Redis %s: %d.%d or later is needed", v, minMajor, minMinor)
	}
}

func (c *checkup) eviction(policy, limit string) {
	switch {
	case policy == "" || policy == "noeviction":
	case limit == "0":
		c.add(Warning, CodeEviction, "maxmemory-policy is %s: once maxmemory is set, Redis may throw writes and locks away; want noeviction", policy)
	case strings.HasPrefix(policy, "volatile-"):
		c.add(Problem, CodeEviction, "maxmemory-policy is %s: when memory is full Redis throws locks away, and two writes to one resource "+
			"may run at once; want noeviction", policy)
	default:
		c.add(Problem, CodeEviction, "maxmemory-policy is %s: when memory is full Redis throws waiting writes and locks away; want noeviction", policy)
	}
}

func (c *checkup) persistence(info, config map[string]string) {
	save, known := config["save"]
	switch {
	case info["aof_enabled"] == "1" && config["appendfsync"] == "no":
		c.add(Warning, CodeFsync, "appendfsync is no: a power cut loses what was stored in the last half minute or so; want everysec or always")
	case info["aof_enabled"] != "0":
	case known && save == "":
		c.add(Problem, CodeNoPersistence, "Redis keeps nothing on disk: a restart loses every waiting write; want appendonly yes")
	case known:
		c.add(Warning, CodeNoPersistence, "Redis keeps snapshots only (save %s): a crash loses what was stored since the last one; want appendonly yes", save)
	default:
		c.add(Warning, CodeNoPersistence, "Redis keeps no append-only file: a crash loses at least what was stored since the last snapshot; want appendonly yes")
	}
	for _, field := range []string{"aof_last_write_status", "rdb_last_bgsave_status"} {
		if status := info[field]; status != "" && status != persistOK {
			c.add(Problem, CodePersistFailing, "Redis cannot write to its disk (%s is %s): it may refuse writes, and a restart loses what was stored since",
				field, status)
		}
	}
}

func (c *checkup) replicas(info, config map[string]string) {
	connected, err := strconv.Atoi(info["connected_slaves"])
	if err != nil {
		return
	}
	if want := c.q.cfg.Replicas; connected < want {
		c.add(Problem, CodeReplicas, "%d replicas are connected and Config.Replicas is %d: every push ends in ErrNotReplicated", connected, want)
	}
	least, err := strconv.Atoi(config["min-replicas-to-write"])
	if err != nil {
		return
	}
	good, err := strconv.Atoi(info["min_slaves_good_slaves"])
	switch {
	case least == 0 && connected > 0:
		c.add(Warning, CodeMinReplicas, "min-replicas-to-write is 0: a primary that is cut off from its replicas goes on accepting writes "+
			"and granting locks, and loses them when the network heals; want 1 or more")
	case err == nil && good < least:
		c.add(Problem, CodeMinReplicas, "%d replicas are in step and min-replicas-to-write is %d: Redis refuses to store anything", good, least)
	}
}
