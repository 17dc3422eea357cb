package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Master is the name under which Sentinels know the primary.
const Master = "deferlock"

// The users by which replicas and Sentinels are known to a server, so that it can
// be cut off from them and not from its clients.
const (
	replicaUser  = "replica"
	sentinelUser = "sentinel"
	peerPassword = "peer"

	// ClientPassword is everybody else's.
	ClientPassword = "client"
)

// SentinelSet is a primary with two replicas, watched by three Sentinels.
type SentinelSet struct {
	Servers   []*Redis // the first is the primary to begin with
	Sentinels []*Redis

	cuts [][2]string // from whom to whom nothing is let through
}

// NewSentinelSet starts one and returns when every Sentinel knows all others and
// the replicas are in step. args are for the servers.
func NewSentinelSet(t testing.TB, args ...string) *SentinelSet {
	t.Helper()
	s := &SentinelSet{}
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "5",
		"--requirepass", ClientPassword,
		"--user", replicaUser, "on", ">" + peerPassword, "+@all", "~*", "&*",
		"--user", sentinelUser, "on", ">" + peerPassword, "+@all", "~*", "&*",
		"--masteruser", replicaUser, "--masterauth", peerPassword}, args...)
	hosts := addressBook()
	for i := range 3 {
		host := hosts()
		own := append([]string{"--bind-source-addr", host}, args...)
		if i > 0 {
			own = append([]string{"--replicaof", s.Servers[0].host + " " + strconv.Itoa(s.Servers[0].port)}, own...)
		}
		r := newRedisOn(t, host, 0, own...)
		r.password = ClientPassword
		s.Servers = append(s.Servers, r)
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, newSentinel(t, hosts(), s.Servers[0]))
	}
	for _, r := range s.Servers[1:] {
		Wait(t, patience, "a replica to be in step", func() bool {
			return strings.Contains(info(r, "replication"), "master_link_status:up")
		})
	}
	for _, n := range s.Sentinels {
		Wait(t, patience, "the Sentinels to know each other", func() bool {
			text := info(n, "sentinel")
			return strings.Contains(text, "status=ok") && strings.Contains(text, "slaves=2,sentinels=3")
		})
	}
	return s
}

// newSentinel starts a Sentinel for a primary. It writes to its configuration, so
// it needs one in a file.
func newSentinel(t testing.TB, host string, primary *Redis) *Redis {
	t.Helper()
	port, err := freePort(0)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	n := redisOn(t, host, port)
	file := filepath.Join(n.spec.dir, "sentinel.conf")
	text := fmt.Sprintf("port %[1]d\nbind %[7]s\nbind-source-addr %[7]s\ndir %[2]s\nsentinel monitor %[4]s %[8]s %[3]d 2\n"+
		"sentinel down-after-milliseconds %[4]s 500\nsentinel failover-timeout %[4]s 1000\nsentinel parallel-syncs %[4]s 2\n"+
		"sentinel auth-user %[4]s %[5]s\nsentinel auth-pass %[4]s %[6]s\n",
		port, n.spec.dir, primary.port, Master, sentinelUser, peerPassword, host, primary.host)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatalf("servers: %v", err)
	}
	n.spec.args = []string{file, "--sentinel"}
	if err := n.start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return n
}

// info is a section of INFO, "" when the server does not answer.
func info(r *Redis, section string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	opts := r.Options()
	opts.MaxRetries = -1
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	return rdb.Info(ctx, section).Val()
}

// Addrs are the Sentinels'.
func (s *SentinelSet) Addrs() []string { return addrs(s.Sentinels) }

func addrs(servers []*Redis) []string {
	var list []string
	for _, r := range servers {
		list = append(list, r.addr)
	}
	return list
}

// Client returns a client that follows the primary.
func (s *SentinelSet) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: Master, SentinelAddrs: s.Addrs(), Password: ClientPassword, ContextTimeoutEnabled: true, DialTimeout: time.Second,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Primary is the server that most Sentinels say is the primary.
func (s *SentinelSet) Primary(t testing.TB) *Redis {
	t.Helper()
	var found *Redis
	Wait(t, patience, "the Sentinels to agree on a primary", func() bool {
		votes := map[string]int{}
		for _, n := range s.Sentinels {
			if addr, err := s.masterSeenBy(n); err == nil {
				votes[addr]++
			}
		}
		for _, r := range s.Servers {
			if votes[r.addr] >= 2 && r.isUp() {
				found = r
			}
		}
		return found != nil && strings.Contains(info(found, "replication"), "role:master")
	})
	return found
}

func (s *SentinelSet) masterSeenBy(n *Redis) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := redis.NewSentinelClient(n.Options())
	defer c.Close()
	pair, err := c.GetMasterAddrByName(ctx, Master).Result()
	if err != nil || len(pair) != 2 {
		return "", errors.Join(err, errors.New("no primary"))
	}
	return net.JoinHostPort(pair[0], pair[1]), nil
}

// AwaitOther waits until another server than old is the primary, and returns it.
func (s *SentinelSet) AwaitOther(t testing.TB, old *Redis) *Redis {
	t.Helper()
	var now *Redis
	Wait(t, patience, "a failover", func() bool {
		now = s.Primary(t)
		return now != old
	})
	return now
}

// Failover has a Sentinel make another server the primary while all are well,
// and returns it.
func (s *SentinelSet) Failover(t testing.TB) *Redis {
	t.Helper()
	old := s.Primary(t)
	Wait(t, patience, "a Sentinel to begin a failover", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := redis.NewSentinelClient(s.Sentinels[0].Options())
		defer c.Close()
		return c.Failover(ctx, Master).Err() == nil
	})
	return s.AwaitOther(t, old)
}

// CutOff parts a server from its replicas and from the Sentinels, both ways, but
// not from its clients, until Heal. In a network of its own ([OwnNetwork]) what
// they send each other is dropped, and nobody is told. Else, for that takes the
// rights of root, the server itself does it: it does not know the others any
// more.
func (s *SentinelSet) CutOff(t testing.TB, r *Redis) {
	t.Helper()
	if OwnNetwork() {
		for _, other := range slices.Concat(s.Servers, s.Sentinels) {
			if other != r {
				s.cuts = append(s.cuts, [2]string{r.host, other.host}, [2]string{other.host, r.host})
			}
		}
		for _, c := range s.cuts {
			drop(t, c[0], c[1])
		}
		return
	}
	for _, user := range []string{replicaUser, sentinelUser} {
		r.Do(t, "acl", "setuser", user, "off")
		r.Do(t, "client", "kill", "user", user)
	}
}

// Heal starts and wakes whatever is down or cut off, and returns when one
// primary has two replicas in step.
func (s *SentinelSet) Heal(t testing.TB) {
	t.Helper()
	for _, c := range s.cuts {
		undrop(t, c[0], c[1])
	}
	s.cuts = nil
	for _, r := range slices.Concat(s.Servers, s.Sentinels) {
		if !r.isUp() {
			r.Start(t)
		}
		r.signal(t, syscall.SIGCONT)
	}
	for _, r := range s.Servers {
		for _, user := range []string{replicaUser, sentinelUser} {
			insist(t, r, "acl", "setuser", user, "on")
		}
	}
	// A Sentinel takes ten seconds to see that a primary of old is to follow.
	primary := s.Primary(t)
	for _, r := range s.Servers {
		if r != primary {
			insist(t, r, "replicaof", primary.host, primary.port)
		}
	}
	Wait(t, patience, "one primary with two replicas in step", func() bool {
		return strings.Contains(info(s.Primary(t), "replication"), "connected_slaves:2")
	})
}

// insist has a server carry out a command, however often it cuts connections
// because its role changes.
func insist(t testing.TB, r *Redis, args ...any) {
	t.Helper()
	Wait(t, patience, fmt.Sprint("a server to take ", args), func() bool { return strings.HasPrefix(ask(r, args...), "OK") })
}
