package worker_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

// startCluster starts a Redis Cluster of three masters that share the slots.
func startCluster(t *testing.T) *redis.ClusterClient {
	const nodes, slots = 3, 16384
	var addrs []string
	var clients []*redis.Client
	for i := range nodes {
		s := redistest.Real(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		c := s.Client(t)
		if err := c.ClusterAddSlotsRange(t.Context(), i*slots/nodes, (i+1)*slots/nodes-1).Err(); err != nil {
			t.Fatal(err)
		}
		addrs, clients = append(addrs, s.Addr()), append(clients, c)
	}
	for _, c := range clients[1:] {
		host, port, _ := net.SplitHostPort(addrs[0])
		if err := c.ClusterMeet(t.Context(), host, port).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range clients {
		redistest.Wait(t, "the cluster to form", func() bool {
			info := c.ClusterInfo(t.Context()).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, ContextTimeoutEnabled: true, ClusterStateReloadInterval: time.Second,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestOnAClusterEveryShardKeepsItsPromises(t *testing.T) {
	rdb := startCluster(t)
	w, err := worker.New(rdb, worker.Config{Name: "accounts", Shards: 7, Concurrency: 8})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := map[string][]int{}
	busy := map[string]bool{}
	credits, err := worker.Wrap(w, func(_ context.Context, c clusterCredit) error {
		mu.Lock()
		if busy[c.Account] {
			t.Errorf("two writes to %q at once", c.Account)
		}
		busy[c.Account] = true
		mu.Unlock()
		<-time.After(time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		busy[c.Account] = false
		got[c.Account] = append(got[c.Account], c.N)
		return nil
	}, worker.Kind[clusterCredit]{Name: "credit", Resource: func(c clusterCredit) string { return c.Account }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- w.Run(ctx) }()

	const accounts, each = 12, 40
	var submitters sync.WaitGroup
	for a := range accounts {
		submitters.Go(func() {
			for n := range each {
				if _, err := credits.Do(t.Context(), clusterCredit{fmt.Sprintf("{%d} acc}ount", a), n}); err != nil {
					t.Error(err)
				}
				if n%10 == 0 { // a second submitter, so that the lane is not empty
					if _, err := credits.Push(t.Context(), clusterCredit{fmt.Sprintf("{%d} acc}ount", a), n}, 0); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	submitters.Wait()
	redistest.Wait(t, "all writes", func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, v := range got {
			n += len(v)
		}
		return n == accounts*(each+each/10)
	})
	for account, ns := range got {
		for i := 1; i < len(ns); i++ {
			if ns[i] < ns[i-1] {
				t.Errorf("%s: %d took effect after %d", account, ns[i], ns[i-1])
			}
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	redistest.Audit(t, rdb, "accounts")
	if left, err := redistest.Locks(t.Context(), rdb, "accounts"); err != nil || len(left) > 0 {
		t.Errorf("locks left: %q, %v", left, err)
	}
}

type clusterCredit struct {
	Account string
	N       int
}
