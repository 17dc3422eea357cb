package worker

// Exponential is the default backoff, with a random number of the test's.
var Exponential = exponential
