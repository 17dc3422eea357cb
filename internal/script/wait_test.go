package script_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/internal/script"
)

// replicaOf starts a replica and returns when it is connected.
func replicaOf(t *testing.T, primary *redistest.Server) {
	t.Helper()
	config(t, primary, "repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	redistest.Real(t, "--replicaof", host, port)
	c := primary.Client(t)
	redistest.Wait(t, "the replica is connected", func() bool {
		n, err := script.NewSender(c).Run(t.Context(), count, script.Wait{Replicas: 1, Timeout: 10 * time.Millisecond}, []string{"{n:0}:probe"})
		return err == nil && n.Acked == 1
	})
}

func TestReplicasThatAcknowledgeAreCounted(t *testing.T) {
	s := redistest.Real(t)
	c := s.Client(t)
	w := script.Wait{Replicas: 1, Timeout: 2 * time.Second}
	alone := w
	alone.Timeout = 20 * time.Millisecond
	r, err := script.NewSender(c).Run(t.Context(), count, alone, []string{key})
	if err != nil || r.Value != int64(1) || r.Acked != 0 {
		t.Errorf("without a replica: %+v, %v, want it done and acknowledged by none", r, err)
	}
	replicaOf(t, s)
	s.FlushScripts(t) // the script is sent twice, the WAIT after the first one counts nothing
	r, err = script.NewSender(c).Run(t.Context(), count, w, []string{key})
	if err != nil || r.Value != int64(2) || r.Acked != 1 {
		t.Errorf("with a replica: %+v, %v, want it done and acknowledged by one", r, err)
	}
}

func TestWaitIsInTheScriptsOwnFlight(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, count)
		p.Reset()
		if _, err := script.NewSender(c).Run(t.Context(), count, script.Wait{Replicas: 1, Timeout: time.Millisecond}, []string{key}); err != nil {
			t.Fatal(err)
		}
		if flights, commands := p.RoundTrips(), p.Requests(); flights != 1 || commands != 2 {
			t.Errorf("%d commands in %d round trips, want 2 in 1", commands, flights)
		}
	})
}

// WAIT takes 0 ms for ever.
func TestShortestWaitHasAnEnd(t *testing.T) {
	p := redistest.NewProxy(t, redistest.Real(t))
	p.Record("wait")
	r, err := script.NewSender(p.Client(t)).Run(t.Context(), count, script.Wait{Replicas: 1, Timeout: time.Microsecond}, []string{key})
	if err != nil || r.Acked != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, sent := range p.Captured() {
		if !bytes.HasSuffix(sent, []byte("$1\r\n1\r\n$1\r\n1\r\n")) {
			t.Errorf("sent %q, want WAIT for 1 replica, 1 ms", sent)
		}
	}
}

func TestLostReplyToWaitIsNoLostScript(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := redistest.NewProxy(t, s)
		c := p.Client(t)
		known(t, c, count)
		p.DropReply("wait", 1)
		r, err := script.NewSender(c).Run(t.Context(), count, script.Wait{Replicas: 1, Timeout: time.Millisecond}, []string{key})
		if err != nil || r.Acked != 0 || r.Value != int64(1) || r.Repeated {
			t.Errorf("%+v, %v, want it done once and acknowledged by none", r, err)
		}
	})
}

// A ring has no key by which to send WAIT: it went to a random server, which
// counted the replicas of writes it had not got.
func TestWaitGoesToTheServerOfTheKeyInARing(t *testing.T) {
	safe, alone := redistest.Real(t), redistest.Real(t)
	replicaOf(t, safe)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"safe": safe.Addr(), "alone": alone.Addr()}})
	defer ring.Close()
	seen := map[int64]int{}
	for i := range 40 {
		k := fmt.Sprintf("{n:%d}:k", i)
		if err := ring.Set(t.Context(), k, 0, 0).Err(); err != nil {
			t.Fatal(err)
		}
		want, err := safe.Client(t).Exists(t.Context(), k).Result()
		if err != nil {
			t.Fatal(err)
		}
		w := script.Wait{Replicas: 1, Timeout: 10 * time.Millisecond} // nobody can answer
		if want == 1 {
			w.Timeout = 2 * time.Second
		}
		r, err := script.NewSender(ring).Run(t.Context(), count, w, []string{k})
		if err != nil {
			t.Fatal(err)
		}
		if r.Acked != want {
			t.Errorf("key %s: acknowledged by %d, want %d", k, r.Acked, want)
		}
		seen[want]++
	}
	if len(seen) != 2 {
		t.Errorf("only one server was used: %v", seen)
	}
}

// cluster makes one cluster of servers, the first of which has all slots.
func cluster(t *testing.T, n int) (servers []*redistest.Server, ids []string) {
	t.Helper()
	for i := range n {
		s := redistest.Real(t, "--cluster-enabled", "yes")
		c := s.Client(t)
		if i == 0 {
			if err := c.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
				t.Fatal(err)
			}
		} else {
			host, port, _ := net.SplitHostPort(servers[0].Addr())
			if err := c.ClusterMeet(t.Context(), host, port).Err(); err != nil {
				t.Fatal(err)
			}
		}
		id, err := c.Do(t.Context(), "cluster", "myid").Text()
		if err != nil {
			t.Fatal(err)
		}
		servers, ids = append(servers, s), append(ids, id)
	}
	for _, s := range servers {
		c := s.Client(t)
		redistest.Wait(t, "the cluster is up", func() bool {
			info, err := c.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n))
		})
	}
	return servers, ids
}

func TestScriptsFollowASlotThatMoved(t *testing.T) {
	servers, ids := cluster(t, 2)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr(), servers[1].Addr()}, ContextTimeoutEnabled: true})
	defer c.Close()
	slot, err := servers[0].Client(t).ClusterKeySlot(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range []script.Wait{{}, {Replicas: 1, Timeout: time.Millisecond}} {
		owner, other := i%2, (i+1)%2
		r, err := script.NewSender(c).Run(t.Context(), first, w, []string{key})
		if err != nil || r.Value != int64(1) {
			t.Fatalf("before the move: %+v, %v", r, err)
		}
		if err := servers[owner].Client(t).Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
		for _, j := range []int{other, owner} {
			if err := servers[j].Client(t).Do(t.Context(), "cluster", "setslot", slot, "node", ids[other]).Err(); err != nil {
				t.Fatal(err)
			}
		}
		r, err = script.NewSender(c).Run(t.Context(), first, w, []string{key})
		if err != nil || r.Value != int64(1) || r.Repeated {
			t.Errorf("after the move, with %+v: %+v, %v", w, r, err)
		}
		if n := value(t, servers[other].Client(t)); n != 1 {
			t.Errorf("the new owner has %d, want 1", n)
		}
		if err := servers[other].Client(t).Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWaitGoesToTheServerOfTheKeyInACluster(t *testing.T) {
	servers, ids := cluster(t, 3) // the first has a replica, the second a slot, too
	for _, s := range []*redistest.Server{servers[1], servers[0]} {
		if err := s.Client(t).Do(t.Context(), "cluster", "setslot", 0, "node", ids[1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	replica := servers[2].Client(t)
	redistest.Wait(t, "it is a replica", func() bool { return replica.ClusterReplicate(t.Context(), ids[0]).Err() == nil })
	redistest.Wait(t, "it is in step", func() bool {
		info, err := replica.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr()}, ContextTimeoutEnabled: true})
	defer c.Close()
	for i := range 20 {
		r, err := script.NewSender(c).Run(t.Context(), count, script.Wait{Replicas: 1, Timeout: 2 * time.Second}, []string{key})
		if err != nil || r.Value != int64(i+1) || r.Acked != 1 {
			t.Fatalf("%+v, %v, want it done and acknowledged by one", r, err)
		}
	}
}

func TestClusterThatIsGoneIsClear(t *testing.T) {
	servers, _ := cluster(t, 1)
	c := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr()}, ContextTimeoutEnabled: true, DialerRetries: 1, DialTimeout: time.Second,
	})
	defer c.Close()
	for _, w := range []script.Wait{{}, {Replicas: 1, Timeout: time.Millisecond}} {
		if _, err := script.NewSender(c).Run(t.Context(), count, w, []string{key}); err != nil {
			t.Fatal(err)
		}
	}
	servers[0].Kill(t)
	for _, w := range []script.Wait{{}, {Replicas: 1, Timeout: time.Millisecond}} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := script.NewSender(c).Run(ctx, count, w, []string{key})
		// A connection that was open may have taken the request; one that has to
		// be dialled has not.
		if err == nil {
			t.Error("a script ran on a server that is gone")
		}
		_, err = script.NewSender(c).Run(ctx, count, w, []string{key})
		if err == nil || errors.Is(err, script.ErrUnclear) {
			t.Errorf("with %+v: %v, want an error that leaves nothing unclear", w, err)
		}
	}
}
