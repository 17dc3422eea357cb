package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// networkVariable is set for a process that has a network of its own.
const networkVariable = "DEFERLOCK_NETWORK"

// OwnNetwork says that this process is one that InOwnNetwork has started:
// nobody else is in its network, and every server of a SentinelSet has an address
// of its own there.
func OwnNetwork() bool { return os.Getenv(networkVariable) != "" }

// ErrNoNetwork is wrapped by the error of [InOwnNetwork] when a network cannot be
// had: it takes root, and iptables.
var ErrNoNetwork = errors.New("servers: no network of its own can be had")

// InOwnNetwork runs the test once more in a process with a network of its own,
// and returns what that said. The error wraps [ErrNoNetwork] if nothing was run.
func InOwnNetwork(t testing.TB) (said string, err error) {
	t.Helper()
	apart := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 { // Postgres would be run as nobody it knows
		return "", fmt.Errorf("%w: it takes root", ErrNoNetwork)
	}
	probe := exec.Command("iptables", "-S")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := probe.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: iptables: %w: %s", ErrNoNetwork, err, out)
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	text := &strings.Builder{}
	cmd := exec.Command(program, "-test.v", "-test.timeout", "5m", "-test.run", "^"+regexp.QuoteMeta(t.Name())+"$")
	cmd.Env = append(os.Environ(), networkVariable+"=yes", "DEFERLOCK_SERVERS="+programs)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = text, text, apart
	ended := make(chan struct{})
	if err := StartWithParent(cmd, func() { close(ended) }); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoNetwork, err)
	}
	<-ended
	if !cmd.ProcessState.Success() {
		return text.String(), fmt.Errorf("servers: in a network of its own: %v", cmd.ProcessState)
	}
	return text.String(), nil
}

// openNetwork gives a process that has a network of its own its loopback
// addresses.
func openNetwork() error {
	if !OwnNetwork() {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return err
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

var books atomic.Int64

// addressBook gives out addresses: each another one in a network of its own, else
// always the same.
func addressBook() func() string {
	book, n := books.Add(1), 0
	return func() string {
		if !OwnNetwork() {
			return local
		}
		n++
		return fmt.Sprintf("127.1.%d.%d", book, n)
	}
}

// drop lets nothing through any more from one address to another.
func drop(t testing.TB, from, to string) { t.Helper(); iptables(t, "-A", from, to) }

// undrop ends a drop.
func undrop(t testing.TB, from, to string) { t.Helper(); iptables(t, "-D", from, to) }

func iptables(t testing.TB, do, from, to string) {
	t.Helper()
	if out, err := exec.Command("iptables", "-w", do, "INPUT", "-s", from, "-d", to, "-j", "DROP").CombinedOutput(); err != nil {
		t.Fatalf("servers: iptables: %v: %s", err, out)
	}
}
