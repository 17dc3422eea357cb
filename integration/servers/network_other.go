//go:build !linux

package servers

import (
	"errors"
	"testing"
)

// ErrNoNetwork is wrapped by the error of [InOwnNetwork] when a network cannot be
// had.
var ErrNoNetwork = errors.New("servers: no network of its own can be had: it takes Linux")

// OwnNetwork says that this process has a network of its own: never.
func OwnNetwork() bool { return false }

// InOwnNetwork would run the test in a network of its own.
func InOwnNetwork(testing.TB) (string, error) { return "", ErrNoNetwork }

func openNetwork() error { return nil }

func addressBook() func() string { return func() string { return local } }

func drop(t testing.TB, _, _ string)   { t.Fatal(ErrNoNetwork) }
func undrop(t testing.TB, _, _ string) { t.Fatal(ErrNoNetwork) }
