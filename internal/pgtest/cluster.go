package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience is how long a server may take to start, to stop or to answer: far
// longer than it does on an idle machine.
const patience = 30 * time.Second

// cluster is a temporary PostgreSQL cluster and the server that runs it.
type cluster struct {
	dir     string
	running *os.Process
	gone    chan struct{} // closed when the server has ended and been waited for
}

// newCluster makes a cluster and starts its server. Nothing is left behind when
// it fails.
func newCluster(settings []string) (*cluster, error) {
	initdb, err := program("initdb")
	if err != nil {
		return nil, err
	}
	postgres, err := program("postgres")
	if err != nil {
		return nil, err
	}
	user, err := account()
	if err != nil {
		return nil, err
	}
	// A socket's path has at most 107 bytes: t.TempDir would be too long.
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, gone: make(chan struct{})}
	if err = c.start(initdb, postgres, user, settings); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return c, nil
}

func (c *cluster) start(initdb, postgres string, user *owner, settings []string) error {
	if err := user.give(c.dir); err != nil {
		return err
	}
	data := filepath.Join(c.dir, "data")
	cmd := exec.Command(initdb, "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = c.dir
	user.runs(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", initdb, err, out)
	}
	args := []string{"-D", data, "-k", c.dir, "-c", "listen_addresses=", "-c", "max_connections=200", "-c", "shared_buffers=64MB"}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd = exec.Command(postgres, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	user.runs(cmd)
	if err := c.spawn(cmd); err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		c.kill()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s did not come up: %w\n%s", postgres, err, text)
	}
	return nil
}

// spawn starts the server and the goroutine that waits for it.
func (c *cluster) spawn(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		// Linux ends the child with the thread that started it, not with the
		// process: the thread has to stay for as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was told to stop, or its log says why it ended
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	c.running = cmd.Process
	return nil
}

// ready waits until the server answers.
func (c *cluster) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, c.url())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-c.gone:
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (c *cluster) url() string {
	return "postgres:///postgres?user=postgres&host=" + url.QueryEscape(c.dir)
}

// stop ends the server and removes everything.
func (c *cluster) stop() {
	c.kill()
	_ = os.RemoveAll(c.dir)
}

// kill ends the server at once, and in a way in which it frees its memory.
func (c *cluster) kill() {
	_ = c.running.Signal(quit)
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-c.gone:
	case <-late.C:
		_ = c.running.Kill()
		<-c.gone
	}
}

// places are where packages put the programs when they do not put them on the
// PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin",            // Debian, Ubuntu
	"/usr/pgsql-*/bin",                     // the PostgreSQL project's packages for Fedora, RHEL
	"/usr/libexec/postgresql*",             // Alpine
	"/usr/local/pgsql/bin",                 // from source
	"/opt/homebrew/opt/postgresql*/bin",    // Homebrew
	"/usr/local/opt/postgresql*/bin",       // Homebrew on Intel
	"/opt/local/lib/postgresql*/bin",       // MacPorts
	"/Applications/Postgres.app/*/*/*/bin", // Postgres.app
}

// program finds a program of PostgreSQL, the newest if there are several.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, place := range places {
		found, _ := filepath.Glob(filepath.Join(place, name))
		slices.Reverse(found)
		for _, path := range found {
			if path, err := exec.LookPath(path); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf(`there is no Postgres to test against: no %s on the PATH nor in %s. Do one of these:
  - make test, as root on Debian or Ubuntu or with Homebrew: it installs PostgreSQL
  - install it: apt-get install postgresql, dnf install postgresql-server, apk add postgresql, brew install postgresql
  - set DATABASE_URL to a database in which the tests may create schemas`, name, strings.Join(places, ", "))
}
