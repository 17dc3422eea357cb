package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
)

func TestTuneShowsTheTablesRecommendsAndDraws(t *testing.T) {
	cache, err := servers.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Stop()
	t.Setenv("REDIS_URL", cache.URL)
	file := filepath.Join(t.TempDir(), "tune.svg")
	args := []string{"-tune", "-writers", "4", "-resources", "2", "-work", "1ms", "-batches", "1,5", "-lookbacks", "0,5ms",
		"-time", "20ms", "-rounds", "1", "-plot", file}
	var out, problems bytes.Buffer
	if code := run(t.Context(), args, &out, &problems); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, &out, &problems)
	}
	for _, want := range []string{"4 writers submit with Do to 2 accounts", "Full load", "Your rate", "each took effect once", "Recommended: ", "Drawn: " + file} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
	if text, err := os.ReadFile(file); err != nil || !bytes.Contains(text, []byte("<svg")) {
		t.Errorf("the plot has %d bytes (%v)", len(text), err)
	}
	opts, err := redis.ParseURL(cache.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	if keys, err := rdb.Keys(t.Context(), "*").Result(); err != nil || len(keys) > 0 {
		t.Errorf("a Redis that was there before still has %q (%v)", keys, err)
	}
}

func TestTuneRefusesWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"-tune", "-batches", "0"}, {"-tune", "argument"}, {"-tune", "-processes", "2"}, {"-writers", "2", "-tune"}} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), args, &out, &problems); code != 2 || problems.Len() == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, &problems)
		}
	}
	var out, problems bytes.Buffer
	if code := run(t.Context(), []string{"-tune", "-h"}, &out, &problems); code != 0 || !strings.Contains(problems.String(), "-lookbacks") {
		t.Errorf("-h: exit code %d, %q", code, &problems)
	}
}
