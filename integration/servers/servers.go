// Package servers gives a test the Redis and the Postgres it runs against, and
// lets it do to them what happens to servers: kill, stop, wake, restart, cut
// off, take their memory, their disk, their rights.
//
// There are three ways to a server, tried in this order:
//
//   - the address in REDIS_URL or DATABASE_URL, for tests that leave the server
//     alone ([AnyRedis], [AnyDatabase]);
//   - a container, through dockertest, if a Docker engine answers;
//   - the program on this machine.
//
// If there is none the test fails and says what to install: no test is skipped.
// DEFERLOCK_SERVERS=env, docker or programs forces one way. With env a server
// that a test has to kill is still one of its own.
//
// Containers are of the images that scripts/images builds from the programs on
// this machine, or of those that REDIS_IMAGE and POSTGRES_IMAGE name, as in
// REDIS_IMAGE=redis:7.4. Only an image that is named so is ever pulled, and only
// if the engine does not have it.
//
// Tests that start a redis-server by themselves, such as the library's own, can
// be given these servers too: see [Environ].
//
// Every server belongs to the test it was made for and ends with it. Programs
// also die with the test process, whatever that dies of; containers are removed
// by a shell that waits for its end. A server is told where to be by its command
// line alone, in a directory of its own and, as a container, in the network of
// its host: so both ways are used in the same manner, and a Sentinel or a
// Cluster Bus needs no translated addresses.
package servers

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
)

// The ways to a server.
const (
	env      = "env"
	docker   = "docker"
	programs = "programs"
)

// Way says how servers that a test has for itself are started: "docker" or
// "programs". It fails the test if DEFERLOCK_SERVERS asks for what is not there.
func Way(t testing.TB) string {
	t.Helper()
	way, err := ownWay()
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	return way
}

// forced is what DEFERLOCK_SERVERS says, "" for nothing.
func forced() (string, error) {
	switch f := os.Getenv("DEFERLOCK_SERVERS"); f {
	case "", env, docker, programs:
		return f, nil
	default:
		return "", fmt.Errorf("DEFERLOCK_SERVERS is %q: want env, docker or programs", f)
	}
}

var ownWay = sync.OnceValues(func() (string, error) {
	f, err := forced()
	switch {
	case err != nil:
		return "", err
	case f == programs:
		return programs, nil
	}
	err = engine.answers()
	switch {
	case err == nil:
		return docker, nil
	case f == docker || imagesNamed():
		return "", fmt.Errorf("containers are asked for, but no engine is of use: %w; "+
			"scripts/docker installs and starts one, scripts/images builds the images", err)
	}
	return programs, nil
})

// spec says what a server process is.
type spec struct {
	program string   // redis-server, postgres, initdb
	args    []string // all there is to say, --dir included
	dir     string   // the server's own
	image   string
	user    *account // nil: whoever runs the tests
	env     []string // besides this process's own
}

// running is a server process: a program's, or a container's first.
type running interface {
	signal(syscall.Signal) error
	gone() <-chan struct{} // closed when it has ended and its ports are free
	said() string          // the last it said
}

// launch starts a server process. Who launches it ends it.
func launch(s spec) (running, error) {
	way, err := ownWay()
	if err != nil {
		return nil, err
	}
	if way == docker {
		return engine.run(s)
	}
	r, err := spawn(s)
	if errors.Is(err, errNotInstalled) && engine.err != nil {
		err = fmt.Errorf("%w (why there are no containers: %w)", err, engine.err)
	}
	return r, err
}
