// Package house holds the source of this repository to its own rules: what has
// to be documented, which package may import which, what library code must not
// do, and how long a file may be. It has tests and nothing else; a linter
// cannot say most of this, and a rule that no test checks is soon forgotten.
package house
