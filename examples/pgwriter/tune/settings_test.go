package tune_test

import (
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deferlock/deferlock/examples/pgwriter/tune"
)

func TestFlagsBecomeSettings(t *testing.T) {
	s := parse(t, "-batches", "20, 1,20", "-lookbacks", "1s,0,50ms", "-work", "5ms", "-push", "-rate", "800", "-plot", "x.png")
	if want := []int{1, 20}; !slices.Equal(s.Batches, want) {
		t.Errorf("batches %v, want %v", s.Batches, want)
	}
	if want := []time.Duration{0, 50 * time.Millisecond, time.Second}; !slices.Equal(s.Lookbacks, want) {
		t.Errorf("lookbacks %v, want %v", s.Lookbacks, want)
	}
	if s.Load.Work != 5*time.Millisecond || !s.Load.Push || s.Rate != 800 || s.Plot != "x.png" {
		t.Errorf("%+v", s)
	}
}

func TestWrongFlagsAreRefusedByName(t *testing.T) {
	for _, args := range []string{
		"-writers 0", "-resources 0", "-skew NaN", "-skew -1", "-outstanding 31", "-connections 0", "-work -1s", "-work 1m",
		"-each 1ms", "-batches 0", "-batches 1001", "-batches 1,", "-batches x", "-lookbacks -1s", "-lookbacks 2m", "-lookbacks 5",
		"-rate -1", "-rate NaN", "-rate +Inf", "-time 0", "-rounds 0", "-p99 -1ms", "-plot tune.gif", "-plot tune", "-unheard 1",
	} {
		var problems strings.Builder
		_, err := tune.Parse(strings.Fields(args), &problems)
		if name, _, _ := strings.Cut(args, " "); err == nil || !strings.Contains(problems.String(), name) {
			t.Errorf("%s: error %v, said %q", args, err, &problems)
		}
	}
	if _, err := tune.Parse([]string{"argument"}, io.Discard); err == nil {
		t.Error("an argument that is no flag was accepted")
	}
}

func TestHelpSaysWhatEveryColumnAndFlagMeans(t *testing.T) {
	var help strings.Builder
	if _, err := tune.Parse([]string{"-h"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, full := range []bool{true, false} {
		tune.Rows(&table, parse(t), "", full)
	}
	columns := strings.Fields(strings.ReplaceAll(table.String(), "× first", "×_first"))
	if len(columns) < 12 {
		t.Fatalf("no columns in %q", &table)
	}
	for _, c := range columns {
		if c = strings.ReplaceAll(c, "_", " "); c != "lookback" && c != "batch" && !strings.Contains(help.String(), "  "+c) && !strings.Contains(help.String(), ", "+c) {
			t.Errorf("the help does not say what %q means", c)
		}
	}
}

func TestDefaultSweepTakesThreeMinutesAtMost(t *testing.T) {
	if s := parse(t); s.Estimate() > 3*time.Minute || s.Estimate() < 10*time.Second {
		t.Errorf("it takes %v", s.Estimate())
	}
}

func parse(t *testing.T, args ...string) *tune.Settings {
	t.Helper()
	var problems strings.Builder
	s, err := tune.Parse(args, &problems)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, &problems)
	}
	return s
}
