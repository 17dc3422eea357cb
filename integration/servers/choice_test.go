package servers_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/deferlock/deferlock/integration/servers"
)

func TestAddressesInTheEnvironmentComeFirst(t *testing.T) {
	redis, postgres := servers.NewRedis(t), servers.AnyDatabase(t)
	for _, way := range []string{"", "env"} {
		t.Setenv("DEFERLOCK_SERVERS", way)
		t.Setenv("REDIS_URL", redis.URL())
		t.Setenv("DATABASE_URL", postgres.URL())
		if got := servers.AnyRedis(t); got != redis.URL() {
			t.Errorf("DEFERLOCK_SERVERS=%s: the Redis is at %s", way, got)
		}
		postgres.Exec(t, "DROP TABLE IF EXISTS x; CREATE TABLE x (n int)")
		own := servers.AnyDatabase(t)
		if port := strings.Split(postgres.URL(), "/")[2]; !strings.Contains(own.URL(), port) {
			t.Errorf("DEFERLOCK_SERVERS=%s: the Postgres is at %s", way, own.URL())
		}
		own.Exec(t, "CREATE TABLE x (n int)") // it is not the database that was named
	}
}

// TestServersStart is run by the test below in places where there is nothing.
func TestServersStart(t *testing.T) {
	servers.NewRedis(t).Do(t, "ping")
	servers.AnyDatabase(t).Exec(t, "SELECT 1")
	servers.AnyRedis(t)
}

func TestWithoutAServerTheRunFailsAndSaysWhatToDo(t *testing.T) {
	const noEngine = "DOCKER_HOST=unix:///nowhere/docker.sock"
	for _, tt := range []struct {
		name, want string
		environ    []string
	}{
		{"nothing", "apt-get install redis-server postgresql", []string{noEngine, "PATH=/nowhere"}},
		{"nothing, and why no container", "no Docker engine answers", []string{noEngine, "PATH=/nowhere"}},
		{"no program", "apt-get install redis-server postgresql", []string{"DEFERLOCK_SERVERS=programs", "PATH=/nowhere"}},
		{"no engine", "scripts/docker installs and starts one", []string{"DEFERLOCK_SERVERS=docker", noEngine}},
		{"no engine for an image", "scripts/docker installs and starts one", []string{"REDIS_IMAGE=redis:7.4", noEngine}},
		{"no address", "DATABASE_URL is not set", []string{"DEFERLOCK_SERVERS=env"}},
		{"no way", "want env, docker or programs", []string{"DEFERLOCK_SERVERS=pods"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestServersStart$", "-test.v")
			cmd.Env = append(os.Environ(), "DEFERLOCK_SERVERS=", "REDIS_IMAGE=", "POSTGRES_IMAGE=", "REDIS_SERVER=", "REDIS_URL=", "DATABASE_URL=")
			cmd.Env = append(cmd.Env, tt.environ...)
			out, err := cmd.CombinedOutput()
			if err == nil || strings.Contains(string(out), "SKIP") || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, and it says\n%s", err, out)
			}
		})
	}
}
