package servers

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// RedisVersion is what the redis-server of these tests says it is, such as
// "Redis server v=7.0.15".
func RedisVersion(t testing.TB) string {
	t.Helper()
	v, err := version()
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	return v
}

var version = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "deferlock-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r, err := launch(spec{program: redisProgram, image: redisImage(), dir: dir, args: []string{"--version"}})
	if err != nil {
		return "", err
	}
	<-r.gone()
	said, _, found := strings.Cut(r.said(), " sha=")
	if !found {
		return "", fmt.Errorf("redis-server --version says %q", r.said())
	}
	return said, nil
})

// allowDebug are the arguments that allow DEBUG. Before Redis 7 it always was, and
// they are refused.
func allowDebug(t testing.TB) []string {
	t.Helper()
	if strings.Contains(RedisVersion(t), "Redis server v=6.") {
		return nil
	}
	return []string{"--enable-debug-command", "local"}
}
