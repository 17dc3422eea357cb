// Package backlog measures what a backlog costs: Redis's time, commands and
// memory for a write while many others wait, next to what the plain kaito
// layout takes for the same data.
//
//	go test ./backlog                          a backlog of 10,000
//	make backlog                               of 1,000,000 (in the root directory)
//	make backlog WRITES=100000             of as many
//
// It prints two tables, and fails when the cost of a write grows with the
// backlog or a write takes more memory than it may. Commands are counted and
// bytes are Redis's own; what is a time is this machine's, and judged loosely.
package backlog
