package redistest

import (
	"fmt"
	"os"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

// Main runs a package's tests and exits, with a failure if a goroutine outlived
// them. It is a package's whole TestMain. m is a *testing.M, or what wraps one to
// clean up behind it.
func Main(m interface{ Run() int }) {
	logging.Disable() // faults are what tests inject; errors come back from the calls
	code := m.Run()
	if code == 0 {
		if err := leaked(); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaked looks for goroutines for some seconds: a go-redis pool that dialled a
// dead server to the end notices only once a second that it has been closed.
func leaked() error {
	err := goleak.Find() // looks for 0.4 s
	for n := 0; err != nil && n < 8; n++ {
		err = goleak.Find()
	}
	return err
}
