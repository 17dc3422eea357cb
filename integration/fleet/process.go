package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/servers"
)

// Process is a process of a fleet, seen from outside.
type Process struct {
	Spec Spec

	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	errs  *output
	heard chan struct{} // closed when all that it said has been heard
	gone  chan struct{} // closed when it has ended

	// mu guards all below.
	mu      sync.Mutex
	records []record
	counts  map[string]int // of records, by event and outcome: there may be very many
	killed  bool           // or asked to end: that it ended is no news
}

// start starts a process and returns when it works.
func start(t testing.TB, spec Spec) *Process {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatalf("fleet: %v", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatalf("fleet: %v", err)
	}
	p := &Process{Spec: spec, t: t, cmd: exec.Command(program), errs: &output{}, heard: make(chan struct{}), gone: make(chan struct{}), counts: map[string]int{}}
	p.cmd.Env = append(os.Environ(), variable+"="+string(text))
	p.cmd.Stderr = p.errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatalf("fleet: %v", err)
	}
	// Not StdoutPipe: Wait would close it before all is read.
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatalf("fleet: %v", err)
	}
	p.cmd.Stdout = in
	err = servers.StartWithParent(p.cmd, func() { close(p.gone) })
	_ = in.Close()
	if err != nil {
		t.Fatalf("fleet: %v", err)
	}
	go func() {
		defer close(p.heard)
		defer out.Close()
		listen(out, p.hear)
	}()
	t.Cleanup(p.Kill)
	p.await(saidUp, 1, patience)
	return p
}

// patience is how long a process may take for what takes milliseconds on a
// machine that is not busy with other tests.
const patience = 30 * time.Second

func (p *Process) hear(r record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = append(p.records, r)
	p.counts[r.Event]++
	p.counts[r.Event+" "+r.Outcome]++
	if r.Event == saidNote {
		p.counts[r.Event+": "+r.Text]++
	}
}

// count is how often the process has said something.
func (p *Process) count(event string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[event]
}

// await waits until the process has said something n times.
func (p *Process) await(event string, n int, within time.Duration) {
	p.t.Helper()
	done := func() bool { return p.count(event) >= n }
	servers.Wait(p.t, within, fmt.Sprintf("%s to say %q %d times", p.Spec.Process, event, n), func() bool {
		select {
		case <-p.gone:
			<-p.heard
			if !done() {
				p.t.Fatalf("fleet: %s has ended: %s", p.Spec.Process, p.errs)
			}
		default:
		}
		return done()
	})
}

// AtGate waits until the process is at its gate.
func (p *Process) AtGate() {
	p.t.Helper()
	p.await(saidGate, 1, patience)
}

// Accepted waits until n writes of the process have been accepted.
func (p *Process) Accepted(n int) {
	p.t.Helper()
	servers.Wait(p.t, patience, fmt.Sprintf("%d writes of %s to be accepted", n, p.Spec.Process), func() bool { return p.Taken() >= n })
}

// Taken is how many writes the process was told are taken care of, and Refused
// how many it was told are not.
func (p *Process) Taken() int   { return p.told("accepted") }
func (p *Process) Refused() int { return p.told("refused") }

// Told is how many of the process's submissions have ended, in whatever way.
func (p *Process) Told() int { return p.count(saidReturn) }

func (p *Process) told(outcome string) int { return p.count(saidReturn + " " + outcome) }

// Quiet has the process submit nothing more, and returns when the last of its
// calls has returned.
func (p *Process) Quiet() {
	p.t.Helper()
	p.tell(sayQuiet)
	p.await(saidQuiet, 1, insistence+patience)
}

// Lost is how many replies to a step the process has not got.
func (p *Process) Lost(step string) int { return p.count(saidNote + ": lost " + step) }

// Refusals is how many of its writes the fence has refused.
func (p *Process) Refusals() int { return p.count(saidStale) }

// ToldLost is how often a function of the process was told that its lock is lost.
func (p *Process) ToldLost() int { return p.count(saidTold) }

// Open lets the process go on behind its gate.
func (p *Process) Open() { p.tell(sayOpen) }

func (p *Process) tell(what string) { _, _ = fmt.Fprintln(p.stdin, what) } // it has ended: that is noticed elsewhere

// Stop freezes the process, as a full machine or a long collection does.
func (p *Process) Stop() { p.signal(syscall.SIGSTOP) }

// Continue wakes a process that was stopped.
func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

// Term asks the process to end, as a scheduler does.
func (p *Process) Term() {
	p.expectEnd()
	p.signal(syscall.SIGTERM)
}

func (p *Process) signal(s syscall.Signal) {
	if p.Alive() {
		_ = p.cmd.Process.Signal(s) // it has just ended
	}
}

// Kill ends the process as kill -9 does, and returns when it is gone and all
// that it said is heard.
func (p *Process) Kill() {
	p.expectEnd()
	p.signal(syscall.SIGKILL)
	<-p.gone
	<-p.heard
}

func (p *Process) expectEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
}

// Alive says that the process has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

// exit asks the process to end and tells what was wrong with its end, "" for
// nothing.
func (p *Process) exit() string {
	if !p.Alive() {
		return p.verdict()
	}
	p.tell(sayExit)
	select {
	case <-p.gone:
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // shows what it is at
		select {
		case <-p.gone:
		case <-time.After(5 * time.Second):
		}
		p.Kill()
		return fmt.Sprintf("%s did not end when asked to: %s", p.Spec.Process, p.errs)
	}
	return p.verdict()
}

// verdict is what was wrong with the end of a process.
func (p *Process) verdict() string {
	<-p.heard
	p.mu.Lock()
	defer p.mu.Unlock()
	if state := p.cmd.ProcessState; !p.killed && !state.Success() {
		return fmt.Sprintf("%s ended by itself: %v: %s", p.Spec.Process, state, p.errs)
	}
	return ""
}

// said is all that the process has said.
func (p *Process) said() []record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.records)
}

// Errors is what the process has logged.
func (p *Process) Errors() string { return p.errs.String() }

// output keeps the beginning and the end of what a process logs.
type output struct {
	mu         sync.Mutex // guards all below
	head, tail []byte
}

const outputLength = 16 << 10

// Write never fails.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if room := outputLength - len(o.head); room > 0 {
		o.head = append(o.head, b[:min(room, len(b))]...)
		return len(b), nil
	}
	o.tail = append(o.tail, b...)
	if over := len(o.tail) - outputLength; over > 0 {
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	return len(b), nil
}

// String returns what was kept.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.tail) == 0 {
		return string(o.head)
	}
	return string(o.head) + "\n…\n" + string(o.tail)
}
