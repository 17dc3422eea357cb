package servers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
)

// program is a server that runs as a child of the test process.
type program struct {
	cmd   *exec.Cmd
	tail  *tail
	ended chan struct{}
}

// spawn starts a program that is installed on this machine.
func spawn(s spec) (running, error) {
	path, err := find(s.program)
	if err != nil {
		return nil, err
	}
	p := &program{cmd: exec.Command(path, s.args...), tail: &tail{}, ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = s.dir, append(os.Environ(), s.env...)
	p.cmd.Stdout, p.cmd.Stderr = p.tail, p.tail
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if s.user != nil {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: s.user.uid, Gid: s.user.gid}
	}
	if err := StartWithParent(p.cmd, func() { close(p.ended) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return p, nil
}

// StartWithParent starts a command whose SysProcAttr asks for a signal when its
// parent dies, and calls ended when it has been waited for. Linux sends that
// signal when the thread that started the child ends, not the process: the
// thread has to stay for as long as the child.
func StartWithParent(cmd *exec.Cmd, ended func()) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was killed, or what it said tells why it ended
			ended()
		}
	}()
	return <-started
}

func (p *program) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *program) gone() <-chan struct{} { return p.ended }
func (p *program) said() string          { return p.tail.String() }

var errNotInstalled = errors.New("there is no such program on this machine")

// find looks for a program on the PATH and where packages put Postgres.
func find(name string) (string, error) {
	if own := os.Getenv("REDIS_SERVER"); name == redisProgram && own != "" {
		name = own
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	var found []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/opt/homebrew/opt/postgresql@*/bin/"} {
		some, _ := filepath.Glob(pattern + name)
		found = append(found, some...)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%s: %w: `make redis postgres` in the root directory installs what is missing; "+
			"or install redis and PostgreSQL 15 or newer (Debian: apt-get install redis-server postgresql); "+
			"or start Docker and name images in REDIS_IMAGE and POSTGRES_IMAGE", name, errNotInstalled)
	}
	slices.Sort(found)
	return found[len(found)-1], nil
}

// tail keeps the end of what is written to it.
type tail struct {
	// mu guards text.
	mu   sync.Mutex
	text []byte
}

const tailLength = 8000

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailLength; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// String returns what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
