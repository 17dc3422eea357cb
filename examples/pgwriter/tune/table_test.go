package tune_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/deferlock/deferlock/examples/pgwriter/tune"
)

func TestRowsStandUnderTheirColumns(t *testing.T) {
	slow, quick := measured(1, 0, 512, 12340*time.Microsecond), measured(1000, time.Second, 123456, 98765*time.Microsecond)
	for _, full := range []bool{true, false} {
		var out strings.Builder
		tune.Rows(&out, parse(t, "-outstanding", "1000000"), "The title", full, slow, quick)
		lines := strings.Split(strings.Trim(out.String(), "\n"), "\n")
		if len(lines) != 4 || lines[0] != "The title" {
			t.Fatalf("%q", lines)
		}
		for _, l := range lines[2:] {
			if utf8.RuneCountInString(l) != utf8.RuneCountInString(lines[1]) {
				t.Errorf("not as long as the line with the columns:\n%s\n%s", lines[1], l)
			}
		}
	}
}

func TestRowHasTheFigures(t *testing.T) {
	m := measured(20, 50*ms, 2000, 60*ms)
	m.Full[0].Deferred, m.Full[1].Deferred = 0.2, 0.4
	var full, rate strings.Builder
	tune.Rows(&full, parse(t), "", true, measured(1, 0, 500, ms), m)
	tune.Rows(&rate, parse(t), "", false, measured(1, 0, 500, ms), m)
	if got, want := lastFields(full.String()), "50 ms 20 2000 1 % 4 10.00 200 30 %"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := lastFields(rate.String()), "50 ms 20 100 4.00 25 0 % 30 ms 60 ms"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRowSaysWhatIsBehindAndWhatIsHeldBack(t *testing.T) {
	m := measured(20, time.Second, 2000, 60*ms)
	m.Full[0].Deferred, m.Full[1].Deferred = 1, 1
	m.Rate[0].Behind, m.Rate[1].Behind = true, true
	var full, rate strings.Builder
	s := parse(t, "-outstanding", "1000")
	tune.Rows(&full, s, "", true, m)
	tune.Rows(&rate, s, "", false, m)
	if !strings.Contains(full.String(), "-outstanding") || !strings.Contains(rate.String(), "behind") {
		t.Errorf("%s%s", &full, &rate)
	}
}

// What waits for half a lookback on the average is what is done meanwhile.
func TestHeldBackIsWhereTheLookbackTakesUpTheRoom(t *testing.T) {
	l := tune.Load{Outstanding: 1000}
	p := tune.Point{Batch: 20, Lookback: time.Second}
	if !tune.IsThrottled(l, p, tune.Figures{Writes: 1900, Deferred: 1}) {
		t.Error("950 of 1000 wait for their lookback, and it is not held back")
	}
	for _, f := range []tune.Figures{{Writes: 1900, Deferred: 0.2}, {Writes: 500, Deferred: 1}} {
		if tune.IsThrottled(l, p, f) {
			t.Errorf("%+v is held back", f)
		}
	}
}

func TestTimesAreShort(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0": 0, "0.12 ms": 123 * time.Microsecond, "1.5 ms": 1500 * time.Microsecond, "12.3 ms": 12345 * time.Microsecond,
		"200 ms": 200 * ms, "1 s": time.Second, "61 s": 61 * time.Second,
	} {
		if got := tune.Human(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

func TestSpreadIsRelativeToTheMedian(t *testing.T) {
	if got := tune.Spread([]float64{90, 120, 100}); got != 0.3 {
		t.Errorf("%v, want 0.3", got)
	}
	if tune.Spread(nil) != 0 || tune.Spread([]float64{0, 0}) != 0 {
		t.Error("there is nothing to compare")
	}
}

func TestPlotIsDrawn(t *testing.T) {
	grid := []tune.Measured{
		measured(1, 0, 500, 10*ms), measured(100, 0, 1000, 12*ms), measured(1, 200*ms, 500, 240*ms), measured(100, 200*ms, 4100, 260*ms),
	}
	for _, c := range []struct {
		name, file, begins string
		points             []tune.Measured
	}{
		{"svg", "tune.svg", "<?xml", grid},
		{"png", "tune.png", "\x89PNG", grid},
		{"one point", "one.svg", "<?xml", grid[:1]},
		{"nothing was done", "none.svg", "<?xml", []tune.Measured{measured(1, 0, 0, 0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), c.file)
			if err := tune.Plot(tune.Result{Points: c.points, Rate: 100}, file); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil || !strings.HasPrefix(string(text), c.begins) {
				t.Fatalf("%d bytes, %v", len(text), err)
			}
			if c.name != "svg" {
				return
			}
			for _, want := range []string{"Full load", "At 100 writes a second", "lookback 0", "lookback 200 ms", ">100<", "batch"} {
				if !strings.Contains(string(text), want) {
					t.Errorf("it does not say %q", want)
				}
			}
		})
	}
}

func TestPlotThatCannotBeWrittenIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "missing", "tune.svg")
	if err := tune.Plot(tune.Result{Points: []tune.Measured{measured(1, 0, 500, ms)}, Rate: 1}, file); err == nil {
		t.Error("no error")
	}
}

// lastFields has the last line's words with one space between them.
func lastFields(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(strings.Fields(lines[len(lines)-1]), " ")
}
