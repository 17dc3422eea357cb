package servers

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many a Redis Cluster has.
const slots = 16384

// Cluster is a Redis Cluster of three primaries with a replica each.
type Cluster struct {
	Nodes []*Redis // the first three are the primaries to begin with

	ids []string
}

// busOffset is how far the port of the cluster bus is from a node's port.
const busOffset = 10_000

// NewCluster starts one and returns when every node finds it whole.
func NewCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{}
	args = append([]string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", "500", "--cluster-replica-validity-factor", "0",
		"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	}, args...)
	for range 6 {
		n := newRedis(t, busOffset, args...)
		c.Nodes = append(c.Nodes, n)
		c.ids = append(c.ids, n.Do(t, "cluster", "myid"))
	}
	for i, n := range c.Nodes {
		n.Do(t, "cluster", "set-config-epoch", i+1)
		if i < 3 {
			n.Do(t, "cluster", "addslotsrange", i*slots/3, (i+1)*slots/3-1)
		}
	}
	host, port, _ := net.SplitHostPort(c.Nodes[0].addr)
	for _, n := range c.Nodes[1:] {
		n.Do(t, "cluster", "meet", host, port)
	}
	c.eachSees(t, "cluster_known_nodes:6")
	for i, n := range c.Nodes[3:] {
		Wait(t, patience, "a replica to be told its primary", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			rdb := redis.NewClient(n.Options())
			defer rdb.Close()
			return rdb.ClusterReplicate(ctx, c.ids[i]).Err() == nil
		})
	}
	c.Heal(t)
	return c
}

// eachSees waits until CLUSTER INFO of all nodes that are up says text.
func (c *Cluster) eachSees(t testing.TB, text string) {
	t.Helper()
	for _, n := range c.Nodes {
		if n.isUp() {
			Wait(t, patience, "every node of the cluster to see "+text, func() bool {
				return strings.Contains(ask(n, "cluster", "info"), text)
			})
		}
	}
}

// ask is a server's answer to a command, "" when there is none.
func ask(r *Redis, args ...any) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	opts := r.Options()
	opts.MaxRetries = -1
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	text, _ := rdb.Do(ctx, args...).Text()
	return text
}

// Addrs are the nodes'.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

// Client returns a client of the cluster that looks for changes every second:
// by default one can stay on a dead node for almost a minute.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs(), ContextTimeoutEnabled: true, DialTimeout: time.Second, ClusterStateReloadInterval: time.Second,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Owner is the primary that has the slot of key, once all nodes that are up say
// so.
func (c *Cluster) Owner(t testing.TB, key string) *Redis {
	t.Helper()
	slot, err := strconv.Atoi(c.anyUp(t).Do(t, "cluster", "keyslot", key))
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	var owner *Redis
	Wait(t, patience, "all nodes to agree who owns the slot", func() bool {
		owner = nil
		for _, n := range c.Nodes {
			if !n.isUp() {
				continue
			}
			id := ownerSeenBy(n, slot)
			j := slices.Index(c.ids, id)
			if j < 0 || !c.Nodes[j].isUp() || owner != nil && owner != c.Nodes[j] {
				return false
			}
			owner = c.Nodes[j]
		}
		return owner != nil
	})
	return owner
}

func (c *Cluster) anyUp(t testing.TB) *Redis {
	t.Helper()
	for _, n := range c.Nodes {
		if n.isUp() {
			return n
		}
	}
	t.Fatal("servers: no node of the cluster is up")
	return nil
}

// ownerSeenBy is the ID of the node that has a slot, in the eyes of a node; "" if
// it does not answer or knows of none.
func ownerSeenBy(n *Redis, slot int) string {
	for line := range strings.Lines(ask(n, "cluster", "nodes")) {
		fields := strings.Fields(line)
		if len(fields) < 9 {
			continue
		}
		for _, text := range fields[8:] {
			first, last, isRange := strings.Cut(text, "-")
			if !isRange {
				last = first
			}
			from, err1 := strconv.Atoi(first)
			to, err2 := strconv.Atoi(last)
			if err1 == nil && err2 == nil && from <= slot && slot <= to {
				return fields[0]
			}
		}
	}
	return ""
}

// ReplicaOf is a replica of a primary.
func (c *Cluster) ReplicaOf(t testing.TB, primary *Redis) *Redis {
	t.Helper()
	_, port, _ := net.SplitHostPort(primary.addr)
	var found *Redis
	Wait(t, patience, "a replica", func() bool {
		for _, r := range c.Nodes {
			text := info(r, "replication")
			if strings.Contains(text, "role:slave") && strings.Contains(text, "master_port:"+port) &&
				strings.Contains(text, "master_link_status:up") {
				found = r
			}
		}
		return found != nil
	})
	return found
}

// Migrate moves the slot of key, with all its keys, to another primary, as
// redis-cli --cluster reshard does. Clients meet MOVED, ASK and TRYAGAIN.
func (c *Cluster) Migrate(t testing.TB, key string) {
	t.Helper()
	from := c.Owner(t, key)
	var to *Redis
	for _, r := range c.Nodes {
		if r != from && r.isUp() && strings.Contains(info(r, "replication"), "role:master") {
			to = r
		}
	}
	fromID, toID := from.Do(t, "cluster", "myid"), to.Do(t, "cluster", "myid")
	slot := from.Do(t, "cluster", "keyslot", key)
	to.Do(t, "cluster", "setslot", slot, "importing", fromID)
	from.Do(t, "cluster", "setslot", slot, "migrating", toID)
	host, port, _ := net.SplitHostPort(to.addr)
	admin := from.Admin(t)
	for {
		keys, err := admin.Do(t.Context(), "cluster", "getkeysinslot", slot, 100).StringSlice()
		if err != nil {
			t.Fatalf("servers: migrate: %v", err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"migrate", host, port, "", 0, 5000, "replace", "keys"}
		for _, k := range keys {
			args = append(args, k)
		}
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("servers: migrate: %v", err)
		}
	}
	to.Do(t, "cluster", "setslot", slot, "node", toID)
	from.Do(t, "cluster", "setslot", slot, "node", toID)
	Wait(t, patience, "all to know where the slot is now", func() bool { return c.Owner(t, key) == to })
}

// Heal starts whatever is down, and returns when every node finds the cluster
// whole and every primary has a replica in step.
func (c *Cluster) Heal(t testing.TB) {
	t.Helper()
	for _, n := range c.Nodes {
		if !n.isUp() {
			n.Start(t)
		}
		n.Continue(t)
	}
	c.eachSees(t, "cluster_state:ok")
	Wait(t, patience, "every replica to be in step", func() bool {
		replicas := 0
		for _, n := range c.Nodes {
			text := info(n, "replication")
			if strings.Contains(text, "master_link_status:up") || strings.Contains(text, "role:master") {
				replicas++
			}
		}
		return replicas == len(c.Nodes)
	})
}
