package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ory/dockertest/v3"
	dc "github.com/ory/dockertest/v3/docker"
)

// dockerEngine is the way to containers.
type dockerEngine struct {
	once sync.Once
	pool *dockertest.Pool
	err  error

	reaper    *exec.Cmd // removes the containers when its standard input ends
	reaperEnd interface{ Close() error }
}

var engine dockerEngine

// label marks the containers of one test process.
const label = "deferlock-test"

func owner() string { return strconv.Itoa(os.Getpid()) }

// answers says whether there is an engine that has our images.
func (e *dockerEngine) answers() error {
	e.once.Do(func() { e.err = e.connect() })
	return e.err
}

func (e *dockerEngine) connect() error {
	pool, err := dockertest.NewPool("") // never fails for want of an engine
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := pool.Client.PingWithContext(ctx); err != nil {
		return fmt.Errorf("no Docker engine answers: %w", err)
	}
	for _, image := range []string{redisImage, postgresImage} {
		if _, err := pool.Client.InspectImage(image); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	e.pool = pool
	return e.startReaper()
}

// startReaper starts the shell that removes this process's containers when it
// has ended, whatever it ended of.
func (e *dockerEngine) startReaper() error {
	const script = `cat >/dev/null; docker ps -aq --filter "label=$1=$2" | xargs -r docker rm -f >/dev/null 2>&1`
	e.reaper = exec.Command("sh", "-c", script, "reaper", label, owner())
	e.reaper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	stdin, err := e.reaper.StdinPipe()
	if err != nil {
		return err
	}
	e.reaperEnd = stdin
	return e.reaper.Start()
}

// close removes what is left and waits until it is.
func (e *dockerEngine) close() {
	e.once.Do(func() { e.err = errors.New("the tests have ended") })
	if e.reaper != nil && e.reaper.Process != nil {
		_ = e.reaperEnd.Close()
		_ = e.reaper.Wait()
	}
}

// container is a server that runs as a container's first process.
type container struct {
	pool     *dockertest.Pool
	resource *dockertest.Resource
	ended    chan struct{}
	tail     *tail
}

// run starts a container. Its image holds the same programs as a machine on
// which they are installed; its directory is the server's own, at the same path.
func (e *dockerEngine) run(s spec) (running, error) {
	repository, tag, _ := strings.Cut(s.image, ":")
	opts := &dockertest.RunOptions{
		Repository: repository, Tag: tag, Entrypoint: []string{s.program}, Cmd: s.args, WorkingDir: s.dir,
		Labels: map[string]string{label: owner()}, Env: s.env, Mounts: []string{s.dir + ":" + s.dir},
	}
	if s.user != nil {
		opts.User = fmt.Sprintf("%d:%d", s.user.uid, s.user.gid)
	}
	r, err := e.pool.RunWithOptions(opts, func(h *dc.HostConfig) { h.NetworkMode = "host" })
	if err != nil {
		return nil, fmt.Errorf("run a container of %s: %w", s.image, err)
	}
	c := &container{pool: e.pool, resource: r, ended: make(chan struct{}), tail: &tail{}}
	go c.wait()
	return c, nil
}

// wait removes the container when it has ended: one that is started again is a
// new one, on the same files.
func (c *container) wait() {
	defer close(c.ended)
	id := c.resource.Container.ID
	_, _ = c.pool.Client.WaitContainer(id)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = c.pool.Client.Logs(dc.LogsOptions{
		Context: ctx, Container: id, OutputStream: c.tail, ErrorStream: c.tail, Stdout: true, Stderr: true, Tail: "50",
	})
	_ = c.pool.Client.RemoveContainer(dc.RemoveContainerOptions{ID: id, Force: true, RemoveVolumes: true})
}

func (c *container) signal(s syscall.Signal) error {
	err := c.pool.Client.KillContainer(dc.KillContainerOptions{ID: c.resource.Container.ID, Signal: dc.Signal(s)})
	var gone *dc.NoSuchContainer
	var idle *dc.ContainerNotRunning
	if errors.As(err, &gone) || errors.As(err, &idle) {
		return nil
	}
	return err
}

func (c *container) gone() <-chan struct{} { return c.ended }
func (c *container) said() string          { return c.tail.String() }
