// Package integration tests deferlock on real servers, with real processes and
// real faults: nothing that was accepted is lost, nothing takes effect twice,
// nothing overtakes, nothing runs at the same time as another.
//
//	go test ./...                          every row of the fault matrix, and 20 s of torture
//	go test -run Row04 .                   one row
//	go test -run Planted .                 the checks, against faults planted for them
//	make torture TIME=30m SEED=7           a random mix of faults (in the root directory)
//
// It is a module of its own, so that what it needs does not get into the builds
// of those who use the library.
//
// # Servers
//
// Every test has servers of its own, which it may kill: see package servers. They
// are containers if a Docker engine answers and has the images, which
// scripts/images builds from what is installed; else the programs on this
// machine. scripts/docker installs and starts an engine. DEFERLOCK_SERVERS forces
// one way, and REDIS_URL and DATABASE_URL name servers for tests that do not
// harm them.
//
// # Rows
//
// A test named TestRow04… is row 4 of the fault matrix. To write one, take a rig,
// start processes, do the harm, heal it, and finish:
//
//	func TestRow10RedisKilledAndRestarted(t *testing.T) {
//		r := newRig(t)        // a Redis, a database, a fleet
//		pair(r, nil)          // two processes that submit and work
//		r.redis.Kill()
//		r.redis.Start(t)
//		r.more(50)            // they go on
//		r.Finish()            // drain, judge, audit
//	}
//
// Finish judges by what the processes said, what is in Postgres and what is left
// in Redis: see package fleet, and internal/history for how. A row that could
// pass because its fault never happened has to look whether it did: the report
// counts what was redelivered, refused by the fence, lost and so on.
//
//	worker    1–4, 28–32   faults_worker_test.go, faults_function_test.go
//	network   5, 6, 8, 9   faults_net_test.go
//	Redis     10–15, 20–24, 33, 34
//	          faults_redis_test.go, faults_aof_test.go, faults_refusal_test.go, faults_eviction_test.go,
//	          faults_clock_test.go, faults_clock_amd64_test.go, faults_rights_test.go
//	failover  16–19        faults_cluster_test.go
//	Postgres  7, 25–27     faults_postgres_test.go
//	planted                planted_test.go
//
// Row 18 parts a primary from its replicas and Sentinels by taking away the users
// these are known by, and, as root on Linux with iptables, once more by dropping
// their packets in a network of its own; its log says what was done. Row 23 sets
// Redis's clock by a library put before it (Linux, a C compiler), and a worker's
// by writing over the kernel's function in its memory (Linux on amd64).
//
// Nothing here sleeps to give something time to happen: what waits for a
// condition uses servers.Wait, and what lasts is a fault.
package integration
