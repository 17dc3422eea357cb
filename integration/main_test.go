package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

func TestMain(m *testing.M) {
	fleet.Main()
	servers.Main(m)
}

// rig is what most rows need: a Redis that the test may break, a database, and
// a fleet on both.
type rig struct {
	*fleet.Fleet
	redis    *servers.Redis
	database servers.Database
}

func newRig(t *testing.T, args ...string) *rig {
	t.Helper()
	t.Parallel()
	r := servers.NewRedis(t, args...)
	db := servers.AnyDatabase(t)
	return &rig{Fleet: fleet.New(t, fleet.Single(r.Addr()), db.URL()), redis: r, database: db}
}

// ttl is the life of a lock in these tests.
const ttl = 500 * time.Millisecond

// steady is a load that goes on until it is told to be quiet: few resources, so
// that writes meet.
func steady() *fleet.Load {
	return &fleet.Load{Resources: 4, Goroutines: 4, Pause: 10 * time.Millisecond, Push: 20}
}
