package servers_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/integration/servers"
)

// Tests that start a redis-server by themselves restart what they have killed.
// When it has been waited for, its port has to be free.
func TestKilledStandInTakesItsServerAlong(t *testing.T) {
	environ, _ := servers.Environ(t)
	var program string
	for _, e := range environ {
		if path, is := strings.CutPrefix(e, "REDIS_SERVER="); is {
			program = path
		}
	}
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	for range 2 {
		cmd := exec.Command(program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())
		cmd.Env = append(os.Environ(), environ...)
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		servers.Wait(t, 30*time.Second, "it to answer", func() bool { return rdb.Ping(t.Context()).Err() == nil })
		_ = rdb.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatalf("it is gone, and holds its port: %v; it said %s", err, &said)
		}
		_ = l.Close()
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
