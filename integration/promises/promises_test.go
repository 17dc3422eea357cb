package promises_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/deferlock/deferlock/integration/servers"
)

func TestMain(m *testing.M) {
	servers.StandIn()
	servers.Main(m)
}

// Those that start no server, or try the harness that does, are not among them.
var suite = []string{"./lock", "./defer", "./worker/..."}

func TestPromisesHoldOnTheseServers(t *testing.T) {
	environ, standIns := servers.Environ(t)
	t.Logf("%s, %s", servers.Way(t), servers.RedisVersion(t))
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-count=1", "-json"}, suite...)...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	passed := judge(t, out)
	if err != nil {
		t.Errorf("go test: %v", err)
	}
	n := standIns.Containers(t)
	t.Logf("%d tests passed on at least %d containers", passed, n)
	if servers.Way(t) == "docker" && n == 0 {
		t.Error("no test asked for a container: this proves nothing")
	}
}

// event is what go test -json prints in each line.
type event struct{ Action, Package, Test, Output string }

// judge fails the test for every test that did not pass, and returns how many
// did.
func judge(t *testing.T, out []byte) (passed int) {
	t.Helper()
	said := map[event]string{} // by package and test
	for lines := json.NewDecoder(bytes.NewReader(out)); ; {
		var e event
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("go test -json: %v", err)
		}
		who := event{Package: e.Package, Test: e.Test}
		switch e.Action {
		case "output", "build-output":
			said[who] += e.Output
		case "fail", "skip":
			if e.Action == "skip" && e.Test == "" {
				continue // a package without tests
			}
			t.Errorf("%s: %s %s\n%s", e.Action, e.Package, e.Test, said[who])
		case "pass":
			if e.Test != "" {
				passed++
			}
		}
	}
	if passed == 0 {
		t.Error("no test passed")
	}
	return passed
}
