package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/deferlock/deferlock/examples/pgwriter/servers"
	"github.com/deferlock/deferlock/examples/pgwriter/tune"
)

// runTune is run for `pgwriter -tune`; args are what comes behind it.
func runTune(ctx context.Context, args []string, out, problems io.Writer) (code int) {
	settings, err := tune.Parse(args, problems)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	return exitCode(ctx, advise(ctx, settings, out), problems)
}

// advise starts what is needed, tries the settings and recommends one. Whatever
// it started is gone when it returns.
func advise(ctx context.Context, settings *tune.Settings, out io.Writer) (err error) {
	fmt.Fprintln(out, settings)
	cache, err := servers.Redis(ctx)
	if err != nil {
		return err
	}
	defer cache.Stop()
	fmt.Fprintln(out, "Redis:   ", cache.About)
	database := &servers.Server{}
	if settings.Load.Work == 0 {
		database, err = servers.DurablePostgres(ctx, func(what string) { fmt.Fprintln(out, "Postgres:", what) })
		if err != nil {
			return err
		}
		defer database.Stop()
		fmt.Fprintln(out, "Postgres:", database.About)
	}
	rdb, err := connect(cache.URL)
	if err != nil {
		return err
	}
	defer rdb.Close()
	name := fmt.Sprintf("pgtune_%08x", rand.Uint32())
	if cache.Found {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, servers.RemoveKeys(ctx, rdb, name))
		}()
	}
	result, err := tune.Sweep(ctx, settings, tune.Place{
		Name: name, Redis: rdb, Postgres: database.URL, Out: out, Terminal: isTerminal(out),
	})
	if err != nil {
		return err
	}
	return settings.Conclude(result, out)
}
