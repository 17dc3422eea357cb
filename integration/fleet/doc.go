// Package fleet runs workers and submitters as operating-system processes that
// can be killed, and judges what they did.
//
// A test makes a [Fleet] on a Redis and a Postgres, starts processes with
// [Fleet.Start], does to them and to the servers what it is about, and ends with
// [Fleet.Finish], which drains the queue and checks. A process is the test's own
// binary, started again with a variable that says what to do; so a package that
// uses a fleet has
//
//	func TestMain(m *testing.M) { fleet.Main(); servers.Main(m) }
//
// # Where a process can be stopped
//
// A process given a [Gate] says when it has come to that step, and stays there
// until it is killed or the gate is opened. The steps are
//
//	admit, push, take, claim   a script of the library's is sent
//	ack, release               leave.lua is sent, with and without verdicts
//	refresh                    the lock is renewed
//	begin, write, commit       in the function, around its transaction
//
// each with "before " or "after ". They are found from outside, by hooks of the
// Redis client and of pgx: the library knows nothing of them.
//
// # What is checked
//
// Submitters say what they are about to submit, and what they were told. Effects
// are in Postgres, written in the write's own transaction with the number of the
// write on its resource, the fence, when it began and ended by the server's
// clock, and its payload. Package history finds from both what was lost, done
// twice, changed, overtaken, let through late or run at the same time. The fleet
// adds what needs the servers: writes that are stuck although their lock is
// free, dead letters nobody wanted, locks without an owner, keys that do not fit
// together, processes that ended by themselves or left goroutines behind.
package fleet
