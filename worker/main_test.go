package worker_test

import (
	"testing"

	"github.com/deferlock/deferlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
