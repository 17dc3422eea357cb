//go:build unix

package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// quit makes a server end at once, its shared memory freed.
const quit = syscall.SIGQUIT

// owner is who a cluster belongs to and who its server runs as. PostgreSQL
// refuses to run as root.
type owner struct{ credential *syscall.Credential } // nil: whoever runs the tests

func account() (*owner, error) {
	if os.Geteuid() != 0 {
		return &owner{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &owner{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, and there is neither a user postgres nor nobody: set DATABASE_URL")
}

// give makes the owner the only one who can enter dir.
func (o *owner) give(dir string) error {
	if o.credential == nil {
		return nil
	}
	return os.Chown(dir, int(o.credential.Uid), int(o.credential.Gid))
}

// runs makes cmd run as the owner, and end with the test process where the
// kernel can see to that.
func (o *owner) runs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.credential}
	dieWithParent(cmd.SysProcAttr)
}
