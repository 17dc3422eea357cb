//go:build !linux || !amd64

package fleet

import (
	"fmt"
	"runtime"
	"time"
)

// setClock can set the clock of a process on Linux on amd64 only.
func setClock(time.Duration) error {
	return fmt.Errorf("the clock of a process cannot be set on %s/%s", runtime.GOOS, runtime.GOARCH)
}
