package servers

import (
	"fmt"
	"net/url"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9/logging"
	"github.com/rs/zerolog"
)

// common is the Postgres that the tests of this process share when they leave
// it alone.
var common struct {
	once sync.Once
	pg   *Postgres
	dir  string
	err  error
}

func shared(t testing.TB) *Postgres {
	t.Helper()
	common.once.Do(func() {
		common.pg, common.err = newPostgres(func() string {
			who, err := unprivileged()
			if err == nil {
				common.dir, err = os.MkdirTemp("", "deferlock-") //nolint:usetesting // the server runs as another user, and may outlive the test
			}
			if err == nil && who != nil {
				_ = os.Chown(common.dir, int(who.uid), int(who.gid)) // initdb says so if it failed
			}
			return common.dir
		}, nil)
		if common.err == nil {
			common.err = common.pg.start()
		}
	})
	if common.err != nil {
		t.Fatalf("servers: %v", common.err)
	}
	return common.pg
}

// Main runs a package's tests, ends what they have shared, and exits. It is the
// end of a package's TestMain.
func Main(m *testing.M) {
	logging.Disable() // faults are what tests inject; errors come back from the calls
	zerolog.SetGlobalLevel(zerolog.Disabled)
	if err := openNetwork(); err != nil {
		fmt.Fprintln(os.Stderr, "servers: the network of this process:", err)
		os.Exit(2)
	}
	code := m.Run()
	end()
	os.Exit(code)
}

// end ends what the tests of this process have shared.
func end() {
	common.once.Do(func() { common.err = fmt.Errorf("the tests have ended") })
	if common.pg != nil {
		common.pg.end(syscall.SIGQUIT)
	}
	if common.dir != "" {
		_ = os.RemoveAll(common.dir)
	}
	engine.close()
}

func userinfo(cfg *pgx.ConnConfig) string {
	if cfg.Password == "" {
		return url.User(cfg.User).String()
	}
	return url.UserPassword(cfg.User, cfg.Password).String()
}
