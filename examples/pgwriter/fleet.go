package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

// submission is what is known of one write from the one who submitted it.
type submission struct {
	called   int64 // when it was submitted for the first time; 0: never
	returned int64 // when it was known to be accepted; 0: never
	deferred bool
}

// fleet is the worker processes. The first one that ends without being asked to
// fails it.
type fleet struct {
	job     job // without what differs from process to process
	program string

	// mu guards all below.
	mu          sync.Mutex
	running     []*member      // by number
	submissions [][]submission // by writer, and number of the write less one
	accepted    int
	deferred    int
	retried     int
	again       int // writes that were submitted again, for their process had died
	killed      int
	lastError   string
	failed      error
	stopping    bool

	readers sync.WaitGroup
}

// member is one worker process.
type member struct {
	number int
	cmd    *exec.Cmd
	stdin  io.Closer
	said   *servers.Tail
	killed bool // guarded by fleet.mu
}

func newFleet(j job) (*fleet, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &fleet{job: j, program: program, running: make([]*member, j.Load.Processes)}
	for i := range j.Load.writers() {
		f.submissions = append(f.submissions, make([]submission, j.Load.share(i)))
	}
	return f, nil
}

// start starts all processes.
func (f *fleet) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.running {
		if err := f.startLocked(i); err != nil {
			return err
		}
	}
	return nil
}

// jobOf is what process number i is told: to go on with what its predecessor,
// if there was one, is not known to have got accepted.
func (f *fleet) jobOf(i int) job {
	j := f.job
	j.Process, j.Next = i, make([]int, j.Load.Writers)
	for k := range j.Next {
		subs := f.submissions[i*j.Load.Writers+k]
		n := slices.IndexFunc(subs, func(s submission) bool { return s.returned == 0 })
		if n < 0 {
			n = len(subs)
		}
		j.Next[k] = n + 1
	}
	return j
}

// startLocked starts process number i, or its replacement.
func (f *fleet) startLocked(i int) error {
	told, err := json.Marshal(f.jobOf(i))
	if err != nil {
		return err
	}
	cmd := exec.Command(f.program)
	cmd.Env = append(os.Environ(), processKey+"="+string(told))
	m := &member{number: i, cmd: cmd, said: &servers.Tail{}}
	cmd.Stderr = m.said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a worker process: %w", err)
	}
	m.stdin = stdin
	f.running[i] = m
	f.readers.Go(func() { f.follow(m, stdout) })
	return nil
}

// follow reads what a process says until it ends, and replaces it if it was
// killed.
func (f *fleet) follow(m *member, stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) == nil {
			f.heard(l)
		}
	}
	err := m.cmd.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.stopping:
	case m.killed:
		err = f.startLocked(m.number)
		f.failed = errors.Join(f.failed, err)
	default:
		f.failed = errors.Join(f.failed, fmt.Errorf("worker process %d ended by itself:\n%s", m.number, m.said), err)
	}
}

func (f *fleet) heard(l line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch l.What {
	case saidRetry:
		f.retried++
		return
	case saidError:
		f.lastError = l.Error
		return
	}
	if l.Writer < 0 || l.Writer >= len(f.submissions) || l.Seq < 1 || l.Seq > len(f.submissions[l.Writer]) {
		f.failed = errors.Join(f.failed, fmt.Errorf("a worker process speaks of an unknown write: %+v", l))
		return
	}
	s := &f.submissions[l.Writer][l.Seq-1]
	switch {
	case l.What == saidCall && s.called == 0:
		s.called = l.At
	case l.What == saidCall:
		f.again++
	case l.What == saidReturn:
		s.returned, s.deferred = l.At, l.Deferred
		f.accepted++
		if l.Deferred {
			f.deferred++
		}
	}
}

// kill kills one process with SIGKILL. A new one takes its place.
func (f *fleet) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range rand.Perm(len(f.running)) {
		m := f.running[i]
		if m.killed || f.stopping || m.cmd.Process.Kill() != nil {
			continue // its replacement is not there yet
		}
		m.killed = true
		f.killed++
		return
	}
}

// stop asks all processes to end, insists after a while, and returns when they
// and all that reads from them have ended.
func (f *fleet) stop(patience time.Duration) {
	f.mu.Lock()
	f.stopping = true
	members := slices.Clone(f.running)
	f.mu.Unlock()
	t := time.AfterFunc(patience, func() {
		for _, m := range members {
			if m != nil {
				_ = m.cmd.Process.Kill() // an error: it has ended
			}
		}
	})
	defer t.Stop()
	for _, m := range members {
		if m != nil {
			_ = m.stdin.Close() // an error: it has ended
		}
	}
	f.readers.Wait()
}

// tally is the fleet's numbers at one moment.
type tally struct {
	accepted, deferred, retried, again, killed int
	lastError                                  string
	failed                                     error
}

func (f *fleet) tally() tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	return tally{f.accepted, f.deferred, f.retried, f.again, f.killed, f.lastError, f.failed}
}
