// Command bench sets deferlock beside other ways of doing writes one at a time,
// all in one run, against one Redis: the one that -redis or REDIS_URL names, or
// a redis-server that it starts.
//
//	go run .                              everything, a quarter of an hour
//	go run . -quick                       as little of it as shows something
//	go run . -only uncontended,hot        only these groups of workloads
//	go run . -out dir                     where the report and its plots go
//
// Each round has every peer once, in an order that rotates, so that what else
// the machine does hits all of them alike. The report has the median of the
// rounds and their spread, and ratios to plain redislock before all else.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/deferlock/deferlock/bench/peers"
)

func main() {
	logging.Disable() // go-redis: the errors come back from the calls
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if job := os.Getenv(childKey); job != "" {
		err = child(ctx, job, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case interrupted:
		fmt.Fprintln(os.Stderr, "bench: interrupted; what it started is gone")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are what the command line says.
type settings struct {
	redis, out, only, peers, page, profile string
	quick                                  bool
	rounds, pool                           int
}

func parse(args []string, problems io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&s.redis, "redis", os.Getenv("REDIS_URL"), "`URL` of an empty Redis; without it, one is started")
	flags.StringVar(&s.out, "out", "results", "`directory` for the report, its plots and the figures of all rounds")
	flags.StringVar(&s.only, "only", "", "only these `groups` of workloads, as in uncontended,hot")
	flags.StringVar(&s.peers, "peers", "", "only these `peers`, as in redislock,deferlock")
	flags.StringVar(&s.page, "page", "", "also put the report into this `file`, between its two marks")
	flags.StringVar(&s.profile, "cpuprofile", "", "write a CPU profile of this process to `file`")
	flags.BoolVar(&s.quick, "quick", false, "less of everything: two minutes, and figures that mean little")
	flags.IntVar(&s.rounds, "rounds", 0, "`rounds` of each workload (default 5, quick 2)")
	flags.IntVar(&s.pool, "pool", 64, "`connections` of each peer's client")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 || s.rounds < 0 || s.pool < 1 {
		return s, fmt.Errorf("want flags only, and no fewer than one of anything: %q", args)
	}
	return s, nil
}

// run is main without a process around it.
func run(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	set, err := parse(args, progress)
	if err != nil {
		return err
	}
	z := full
	if set.quick {
		z = quick
	}
	z.rounds = cmp.Or(set.rounds, z.rounds)
	todo, err := choose(workloads(z), set)
	if err != nil {
		return err
	}
	srv, err := findServer(ctx, set.redis)
	if err != nil {
		return err
	}
	defer srv.stop()
	if set.profile != "" {
		stop, err := profile(set.profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	b := &bench{server: srv, pool: set.pool, size: z, progress: progress}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.run(ctx, todo); err != nil {
		return err
	}
	return b.write(ctx, set, out)
}

func profile(path string) (stop func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// choose leaves the workloads and peers that were asked for.
func choose(all []workload, set settings) ([]workload, error) {
	groups, err := words(set.only, func(name string) bool {
		return slices.ContainsFunc(all, func(w workload) bool { return w.Group == name })
	})
	if err != nil {
		return nil, err
	}
	kinds, err := words(set.peers, func(name string) bool {
		return slices.ContainsFunc(peers.All, func(k peers.Kind) bool { return k.Name == name })
	})
	if err != nil {
		return nil, err
	}
	var chosen []workload
	for _, w := range all {
		if groups != nil && !slices.Contains(groups, w.Group) {
			continue
		}
		w.Cases = slices.DeleteFunc(w.Cases, func(c testCase) bool { return kinds != nil && !slices.Contains(kinds, c.Kind.Name) })
		if len(w.Cases) > 0 {
			chosen = append(chosen, w)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no workload is in %q with a peer of %q", set.only, set.peers)
	}
	return chosen, nil
}

// words splits a list of names that must be known; an empty one is nil.
func words(list string, known func(string) bool) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	names := strings.Split(list, ",")
	for _, n := range names {
		if !known(n) {
			return nil, fmt.Errorf("nothing here is called %q", n)
		}
	}
	return names, nil
}
