package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

// fleet is the worker processes.
type fleet struct {
	members []*member
	waiters sync.WaitGroup

	// ended has the error of a process that ended without being asked to.
	ended chan error
}

// member is one worker process.
type member struct {
	cmd   *exec.Cmd
	stdin io.Closer
	told  bytes.Buffer // read after it has ended
	said  servers.Tail
	err   error // how it ended
}

func startFleet(n int, j job) (*fleet, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	f := &fleet{ended: make(chan error, n)}
	for range n {
		m := &member{cmd: exec.Command(program)}
		m.cmd.Env = append(os.Environ(), processKey+"="+string(told))
		m.cmd.Stdout, m.cmd.Stderr = &m.told, &m.said
		if m.stdin, err = m.cmd.StdinPipe(); err == nil {
			err = m.cmd.Start()
		}
		if err != nil {
			f.kill()
			return nil, fmt.Errorf("start a worker process: %w", err)
		}
		f.members = append(f.members, m)
		f.waiters.Go(func() {
			if m.err = m.cmd.Wait(); m.err != nil {
				m.err = fmt.Errorf("a worker process ended with %w\n%s", m.err, &m.said)
			}
			f.ended <- errors.Join(errors.New("a worker process ended by itself"), m.err)
		})
	}
	return f, nil
}

// stop asks all processes to end, and returns what they counted.
func (f *fleet) stop() (counts, error) {
	for _, m := range f.members {
		_ = m.stdin.Close() // an error: it has ended
	}
	f.waiters.Wait()
	var total counts
	for _, m := range f.members {
		var c counts
		if err := errors.Join(m.err, json.Unmarshal(m.told.Bytes(), &c)); err != nil {
			return total, err
		}
		total.Deferred += c.Deferred
		total.Failed += c.Failed
		total.Retried += c.Retried
	}
	return total, nil
}

// kill ends those that are still there.
func (f *fleet) kill() {
	for _, m := range f.members {
		_ = m.cmd.Process.Kill() // an error: it has ended
	}
	f.waiters.Wait()
}
