package pgtest

import "syscall"

// dieWithParent makes the kernel stop the process when the test process ends,
// even if that was killed itself and could not clean up.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = quit }
