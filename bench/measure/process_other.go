//go:build !unix

package measure

import "runtime"

// ReadProcess asks the runtime.
func ReadProcess() Process {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Process{Allocations: m.Mallocs}
}
