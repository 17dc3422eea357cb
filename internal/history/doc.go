// Package history judges a run of many workers by what was recorded of it: which
// writes were submitted and with what answer, which calls of functions there
// were, what took effect and in which order, and what is left in the queue.
//
// It is imported by tests only. It knows neither Redis nor the library it
// judges, so it can be given the records of a simulation, of processes before a
// Postgres, or of a planted fault. [History.Check] takes time in proportion to
// the number of records, but for the sorting of calls, and finds
//
//   - accepted writes that are nowhere ([Lost]);
//   - writes that took effect twice ([Duplicate]), changed, or without anybody
//     having asked for them ([Foreign]), or although their submitter was told
//     that nothing had happened ([Ghost]);
//   - functions that ran at the same time for one resource ([Overlap]);
//   - writes that overtook one accepted before they were submitted ([Overtaken]);
//   - a late holder's effect behind its successor's ([Stale]), and locks whose
//     fence is not greater than that of the holder before ([Fence]).
//
// What it cannot find is in nobody's records: a submitter has to note a write
// before it submits it, and a database what it did in its own transaction.
package history
