// Package redistest gives tests the Redis servers they run against, the faults
// they inject into the way there, and the audit of what is left behind.
//
// It is imported by tests only. Every server, client and proxy belongs to the
// test it was made for and is stopped by that test's clean-up, so a test starts
// on an empty server and cannot see another one's keys. A redis-server takes
// about 10 ms to start; sharing one between tests would save little and would
// force every test to undo what it did to the server's configuration.
//
// What runs on miniredis is not proven until it ran on a Redis, which is why
// [Each] runs a test on both and why a missing redis-server fails a test
// instead of skipping it.
//
//   - [Mini], [Real], [Each]: servers, which can be killed and restarted
//   - [MiniInBubble]: a server inside a testing/synctest bubble
//   - [NewProxy]: lost replies, refused requests, late copies, round trips
//   - [Audit], [Problems], [Locks]: the invariants of the key space
//   - [Wait]: the only place where a test may poll
package redistest
