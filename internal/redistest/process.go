package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// process is a redis-server that can be killed and started again.
type process struct {
	path string
	dir  string
	port int
	args []string

	running *os.Process
	gone    chan struct{} // closed when running has ended and been waited for
	said    *bytes.Buffer // what it said on standard error; read when it is gone
}

// newProcess prepares a redis-server that has not been started.
func newProcess(t testing.TB, args []string) *process {
	t.Helper()
	path := os.Getenv("REDIS_SERVER")
	if path == "" {
		path = "redis-server"
	}
	path, err := exec.LookPath(path)
	if err != nil {
		t.Fatalf("redistest: no redis-server (%v): `make test` installs one; or install it yourself, "+
			"or set REDIS_SERVER to its path", err)
	}
	gone := make(chan struct{})
	close(gone)
	return &process{path: path, dir: t.TempDir(), args: args, gone: gone}
}

func (p *process) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// startOnFreePort starts the server on a port that nobody uses. The ports it
// tries are below those that Linux and macOS give to outgoing connections, so
// that the port is still free when the server is restarted.
func (p *process) startOnFreePort() error {
	var err error
	for range 20 {
		p.port = 20_000 + rand.IntN(10_000)
		probe, taken := net.Listen("tcp", p.addr())
		if taken != nil {
			err = taken
			continue
		}
		_ = probe.Close()
		if err = p.start(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// errPortTaken says that somebody else listens on the port by now.
var errPortTaken = errors.New("the port is taken")

// startPatience is how long a server may take to start. One in a container takes
// long where many are started.
const startPatience = 30 * time.Second

// start runs the server and returns when it answers, or why it does not.
func (p *process) start() error {
	logPath := filepath.Join(p.dir, "redis.log")
	if err := os.Remove(logPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := p.spawn(logPath); err != nil {
		return err
	}
	answers := poll(startPatience, time.Millisecond, func() bool {
		select {
		case <-p.gone:
			return true
		default:
			return p.answers(logPath)
		}
	})
	select {
	case <-p.gone:
	default:
		if answers {
			return nil
		}
		p.kill()
	}
	log, _ := os.ReadFile(logPath)
	if strings.Contains(string(log), "Address already in use") {
		return errPortTaken
	}
	return fmt.Errorf("%s %v did not come up: %s%s", p.path, p.args, log, p.said)
}

// spawn starts the process and the goroutine that waits for it.
func (p *process) spawn(logPath string) error {
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(p.port), "--dir", p.dir, "--logfile", logPath,
		"--daemonize", "no", "--save", "", "--appendonly", "no",
	}, p.args...)
	cmd := exec.Command(p.path, args...)
	dieWithParent(cmd)
	// A REDIS_SERVER may be a program that runs the server elsewhere. Wait waits
	// for the end of standard error too, and so for all that hold it.
	said := &bytes.Buffer{}
	cmd.Stderr = said

	started, gone := make(chan error, 1), make(chan struct{})
	go func() {
		// Linux ends the child with the thread that started it, not with the
		// process: the thread has to stay for as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was killed, or its log says why it ended
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.running, p.gone, p.said = cmd.Process, gone, said
	return nil
}

// answers says whether it is this process that answers on the port, and not
// another one that was faster: no two write to the same log.
func (p *process) answers(logPath string) bool {
	conn, err := net.DialTimeout("tcp", p.addr(), time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	if reply, err := ask(conn, encode("PING")); err != nil || reply != "+PONG\r\n" {
		return false // LOADING, for instance
	}
	log, err := ask(conn, encode("CONFIG", "GET", "logfile"))
	return err == nil && strings.Contains(log, "\r\n"+logPath+"\r\n")
}

// kill ends the process with SIGKILL and waits for it. It does nothing if there
// is none.
func (p *process) kill() {
	if p.running != nil {
		_ = p.running.Kill() // an error: it has ended by itself
	}
	<-p.gone
}
