// Package measure takes and works out figures: who submitted and ran which
// write when, what that says of speed, order and overlap, how often clients had
// to wait for Redis, and what Redis says of itself.
package measure
