// Package torture injects faults of all kinds, drawn from a seed, into a fleet
// under load for a given time, and then checks everything that the fleet has
// done.
//
//	make torture                           five minutes, a new seed
//	make torture TIME=30m SEED=7           half an hour of scenario 7
//
// It prints one table and fails when it has found a violation. The scenario,
// which fault comes when and hits whom, repeats with its seed. What the
// processes do between two faults does not: they are real, and so are the
// servers.
package torture
