package redistest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the process when the test process ends,
// even if that was killed itself and could not clean up.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
