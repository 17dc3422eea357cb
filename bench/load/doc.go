// Package load puts a peer under a load and records what becomes of every
// write. A round hands writes over from several goroutines, waits until all of
// them are done, and says what that took; what cannot be finished in time is
// counted and not waited for.
package load
