package servers

import "syscall"

// account is the user that a child runs as: always this process's own.
type account struct{ name string }

func unprivileged() (*account, error) { return nil, nil }

func (a *account) own(string) error { return nil }

// attributes keeps the terminal's Ctrl-C away from a child, so that it is ended
// in its turn.
func attributes(*account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
