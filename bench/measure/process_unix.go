//go:build unix

package measure

import (
	"runtime"
	"syscall"
	"time"
)

// ReadProcess asks the runtime and the system.
func ReadProcess() Process {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p := Process{Allocations: m.Mallocs}
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		p.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return p
}
