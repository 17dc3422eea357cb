package servers

import "syscall"

// attributes keeps the terminal's Ctrl-C away from a child, so that it is ended
// in its turn, and has the kernel kill it should this process be killed.
func attributes(as *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT, Credential: as.credential()}
}
