//go:build linux

package servers

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource string

// NewRedisWithClock starts a redis-server whose clock can be set. What does that
// is compiled by the C compiler that the race detector needs too.
func NewRedisWithClock(t testing.TB, args ...string) *Redis {
	t.Helper()
	port, err := freePort(0)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	r := redisAt(t, port, args...)
	library, offset := filepath.Join(r.spec.dir, "clock.so"), filepath.Join(r.spec.dir, "offset")
	cc := exec.Command("cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", library, "-ldl")
	cc.Stdin = strings.NewReader(clockSource)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("servers: to set a Redis's clock a C compiler is needed (Debian: apt-get install gcc libc6-dev): %v\n%s", err, out)
	}
	if err := os.WriteFile(offset, make([]byte, 8), 0o600); err != nil {
		t.Fatalf("servers: %v", err)
	}
	r.spec.env = []string{"LD_PRELOAD=" + library, "CLOCK_OFFSET=" + offset}
	if err := r.start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
	return r
}

// SetClock sets the clock of a server made by NewRedisWithClock to so much
// before or after the machine's.
func (r *Redis) SetClock(t testing.TB, off time.Duration) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(r.spec.dir, "offset"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("servers: %v", err)
	}
	defer f.Close()
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(off.Microseconds())), 0); err != nil {
		t.Fatalf("servers: %v", err)
	}
}
