//go:build unix && !linux

package servers

import "syscall"

// attributes keeps the terminal's Ctrl-C away from a child, so that it is ended
// in its turn.
func attributes(as *account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: as.credential()}
}
