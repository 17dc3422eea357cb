// Package linear checks that locks and lanes are linearizable: whatever many
// clients are told while they call at the same time, on a Redis that answers or
// on one whose replies get lost, is what a single client calling one after the
// other would have been told, in an order that no clock contradicts.
//
//	go test ./linear
//	go test ./linear -args -seed 7 -ops 50000
//
// What calls do to a resource, one after the other, is said in model_test.go and
// step_test.go: who holds its lock, and which writes wait, oldest first, started
// how often and by whom. The history that clients record is held against that by
// porcupine. A call whose outcome its client never learned may have happened at
// any time later, or not at all. A check that runs out of time has failed.
// planted_test.go falsifies a history in many ways, and each has to be noticed.
package linear
