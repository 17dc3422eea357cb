package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
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
	reaperEnd io.Closer
}

var engine dockerEngine

// A container is labelled with the test process it is for, and with the process
// that started it: that test process, or a stand-in of it.
const (
	labelTest    = "deferlock-test"
	labelProcess = "deferlock-test-process"
)

func owner() string { return strconv.Itoa(os.Getpid()) }

// The images that scripts/images builds. REDIS_IMAGE and POSTGRES_IMAGE name
// others.
const (
	localRedis    = "deferlock-test/redis:local"
	localPostgres = "deferlock-test/postgres:local"
)

func redisImage() string    { return cmp.Or(os.Getenv("REDIS_IMAGE"), localRedis) }
func postgresImage() string { return cmp.Or(os.Getenv("POSTGRES_IMAGE"), localPostgres) }

// imagesNamed says that the environment names an image.
func imagesNamed() bool { return redisImage() != localRedis || postgresImage() != localPostgres }

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
	// One that was named is pulled when it is not there; ours is in no registry.
	for _, image := range []string{redisImage(), postgresImage()} {
		if image != localRedis && image != localPostgres {
			continue
		}
		if _, err := pool.Client.InspectImage(image); err != nil {
			return fmt.Errorf("the engine has no image %s, which scripts/images builds: %w", image, err)
		}
	}
	e.pool = pool
	return e.startReaper()
}

// startReaper starts the shell that removes this process's containers when it
// has ended, whatever it ended of.
func (e *dockerEngine) startReaper() error {
	const script = `cat >/dev/null; docker ps -aq --filter "label=$1=$2" | xargs -r docker rm -f >/dev/null 2>&1`
	e.reaper = exec.Command("sh", "-c", script, "reaper", labelTest, owner())
	if isStandIn() {
		// Whoever killed this process waits until nobody holds its standard error.
		e.reaper.Args[4], e.reaper.Stderr = labelProcess, os.Stderr
	}
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
	repository, tag := dc.ParseRepositoryTag(s.image)
	opts := &dockertest.RunOptions{
		Repository: repository, Tag: tag, Entrypoint: []string{s.program}, Cmd: s.args, WorkingDir: s.dir,
		Labels: map[string]string{labelTest: owner(), labelProcess: owner()}, Env: s.env,
		Mounts: []string{s.dir + ":" + s.dir}, User: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()),
	}
	if isStandIn() {
		opts.Labels[labelTest] = standInFor()
	}
	if s.user != nil {
		opts.User = fmt.Sprintf("%d:%d", s.user.uid, s.user.gid)
	}
	if s.program != redisProgram { // Postgres wants to know its own name
		opts.Mounts = append(opts.Mounts, "/etc/passwd:/etc/passwd:ro")
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
