package redistest

import (
	"fmt"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

// Main runs a package's tests and exits, with a failure if a goroutine outlived
// them. It is a package's whole TestMain.
func Main(m *testing.M) {
	logging.Disable() // faults are what tests inject; errors come back from the calls
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
