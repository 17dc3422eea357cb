package servers_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deferlock/deferlock/integration/servers"
)

func TestMain(m *testing.M) {
	servers.StandIn()
	servers.Main(m)
}

func TestKilledRedisComesBackWithItsKeys(t *testing.T) {
	t.Parallel()
	r := servers.NewRedis(t)
	r.Do(t, "set", "a", "1")
	r.Kill()
	r.Start(t)
	if got := r.Do(t, "get", "a"); got != "1" {
		t.Errorf("it says %q", got)
	}
}

func TestCutTailLosesTheLastWrites(t *testing.T) {
	t.Parallel()
	r := servers.NewRedis(t)
	r.Do(t, "set", "a", "1")
	r.Do(t, "set", "b", "1")
	r.Kill()
	r.CutTail(t, 10)
	r.Start(t)
	if a, b := r.Do(t, "get", "a"), r.Do(t, "get", "b"); a != "1" || b == "1" {
		t.Errorf("a is %q, b is %q", a, b)
	}
}

func TestKilledPostgresComesBackWithItsRows(t *testing.T) {
	t.Parallel()
	p := servers.NewPostgres(t)
	p.Exec(t, "CREATE TABLE x (n int)")
	p.Exec(t, "INSERT INTO x VALUES (1)")
	p.Kill()
	p.Start(t)
	count(t, p.URL(), "x", 1)
}

func TestEveryTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	for range 2 {
		url := servers.AnyDatabase(t).URL()
		db, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close(t.Context())
		if _, err := db.Exec(t.Context(), "CREATE TABLE x (n int)"); err != nil {
			t.Error(err)
		}
	}
}

func TestSentinelsMakeAReplicaThePrimary(t *testing.T) {
	t.Parallel()
	s := servers.NewSentinelSet(t)
	rdb := s.Client(t)
	if err := rdb.Set(t.Context(), "a", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := s.Primary(t)
	old.Kill()
	s.AwaitOther(t, old)
	s.Heal(t)
	s.Failover(t)
	s.Heal(t)
	if got := rdb.Get(t.Context(), "a").Val(); got != "1" {
		t.Errorf("it says %q", got)
	}
}

func TestClusterOutlivesAPrimaryAndAMigration(t *testing.T) {
	t.Parallel()
	c := servers.NewCluster(t)
	rdb := c.Client(t)
	if err := rdb.Set(t.Context(), "a", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := c.Owner(t, "a")
	c.Migrate(t, "a")
	owner := c.Owner(t, "a")
	if owner == old {
		t.Error("the slot has not moved")
	}
	c.ReplicaOf(t, owner)
	owner.Kill()
	servers.Wait(t, 20e9, "the replica to take over", func() bool { return c.Owner(t, "a") != owner })
	c.Heal(t)
	if got := rdb.Get(t.Context(), "a").Val(); got != "1" {
		t.Errorf("it says %q", got)
	}
}

func count(t *testing.T, url, table string, want int) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	var n int
	if err := db.QueryRow(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s", table)).Scan(&n); err != nil || n != want {
		t.Errorf("%d rows, want %d, %v", n, want, err)
	}
}
