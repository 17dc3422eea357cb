package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// standInVariable makes a test process a stand-in. It holds a directory, named
// like the process that the stand-in is for, in which there is a file for every
// container that was started.
const standInVariable = "DEFERLOCK_STAND_IN"

func isStandIn() bool    { return os.Getenv(standInVariable) != "" }
func standInFor() string { return filepath.Base(os.Getenv(standInVariable)) }

// StandIns are the redis-servers that others have been given by [Environ].
type StandIns struct{ dir string }

// Environ is what the environment has to say for tests that start a redis-server
// by themselves, and look for the address of a Postgres, to get the servers of
// this harness. If those are containers, the program that REDIS_SERVER names is
// this test binary: it takes the same arguments, starts a container, ends when
// that ends, and takes it along when it is killed.
//
// The package's TestMain has to begin with [StandIn].
func Environ(t testing.TB) ([]string, StandIns) {
	t.Helper()
	list := []string{"DATABASE_URL=" + AnyDatabase(t).URL()}
	if Way(t) == programs {
		path, err := find(redisProgram)
		if err != nil {
			t.Fatalf("servers: %v", err)
		}
		return append(list, "REDIS_SERVER="+path), StandIns{}
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	s := StandIns{dir: filepath.Join(t.TempDir(), owner())}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return append(list, "REDIS_SERVER="+binary, standInVariable+"="+s.dir), s
}

// Containers is how many containers have been started, 0 if the way is not
// docker.
func (s StandIns) Containers(t testing.TB) int {
	t.Helper()
	if s.dir == "" {
		return 0
	}
	files, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	return len(files)
}

// StandIn does nothing, unless this process was started in the place of a
// redis-server: then it is one, and does not return.
func StandIn() {
	if !isStandIn() {
		return
	}
	err := standIn(os.Args[1:])
	engine.close()
	if err != nil {
		fmt.Fprintf(os.Stderr, "servers: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func standIn(args []string) error {
	dir, err := os.Getwd()
	if i := slices.Index(args, "--dir"); i >= 0 && i+1 < len(args) {
		dir = args[i+1]
	}
	if err != nil {
		return err
	}
	if err := engine.answers(); err != nil {
		return err
	}
	r, err := engine.run(spec{program: redisProgram, image: redisImage(), dir: dir, args: args})
	if err != nil {
		return err
	}
	note := filepath.Join(os.Getenv(standInVariable), owner())
	if err := os.WriteFile(note, nil, 0o600); err != nil {
		return err
	}
	<-r.gone()
	fmt.Fprintln(os.Stderr, r.said())
	return nil
}
