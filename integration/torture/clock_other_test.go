//go:build !linux

package torture_test

import "github.com/deferlock/deferlock/integration/servers"

// newRedis is a Redis whose clock stays what it is: it can be set on Linux only.
var newRedis = servers.NewRedis
