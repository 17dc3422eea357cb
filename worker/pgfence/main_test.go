package pgfence_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/deferlock/deferlock/internal/pgtest"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(helperVariable); what != "" {
		if err := helping(what); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}
