// Package promises runs the library's own tests, those that prove what it
// promises (P1 to P6 in docs/protocol.md), on the servers of this module: with
// DEFERLOCK_SERVERS=docker every redis-server and the Postgres that they ask for
// is a container.
//
//	make containers                                          the local images
//	make containers REDIS_IMAGES="redis:6.2 valkey/valkey:8"  and these
//
// It proves on which servers the promises hold. What it takes for them to hold
// when servers and processes break is proved by the rows of package integration.
package promises
