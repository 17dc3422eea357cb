package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// delayWorkloads put a network between the writers and Redis. With no delay it
// is the proxy alone.
func delayWorkloads(z size) []workload {
	var all []workload
	for _, delay := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		all = append(all, workload{
			Group: "delay", Fewer: true, Name: fmt.Sprintf("%d ms, uncontended", delay.Milliseconds()),
			Base:  peers.Redislock.Name,
			About: "16 writers with resources of their own, through a proxy that delays what Redis answers. The proxy's CPU time is among that of the writers.",
			Cases: each([]peers.Kind{peers.Ping, peers.Redislock, peers.Kaito, peers.Deferlock},
				delayed(delay, load.Load{Writers: 16, For: z.submit / 2, Most: most, Patience: z.submit + z.patience})),
		}, workload{
			Group: "delay", Fewer: true, Name: fmt.Sprintf("%d ms, hot", delay.Milliseconds()),
			Base:  peers.Redislock.Name,
			About: "16 writers hand over writes of 1 ms to one resource, through a proxy that delays what Redis answers.",
			Cases: each([]peers.Kind{peers.Redislock, peers.Kaito, peers.Deferlock},
				delayed(delay, load.Load{Writers: 16, Resources: 1, Takes: time.Millisecond, Most: z.hot / 3, For: time.Minute,
					Patience: time.Duration(z.hot/3)*time.Millisecond + 2*z.patience})),
		})
	}
	return all
}

// delayed is a round of a load through a proxy.
func delayed(delay time.Duration, l load.Load) round {
	return func(ctx context.Context, b *bench, k peers.Kind) (f measure.Figures, err error) {
		if b.server.options.TLSConfig != nil {
			return nil, errors.New("the proxy that delays does not speak TLS: leave the group out with -only")
		}
		proxy := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
			"delay", "127.0.0.1:0", b.server.options.Addr)
		if err := proxy.Start(); err != nil {
			return nil, fmt.Errorf("toxiproxy: %w", err)
		}
		defer proxy.Stop()
		if delay > 0 {
			toxic := fmt.Sprintf(`{"name": "delay", "type": "latency", "stream": "downstream", "attributes": {"latency": %d}}`, delay.Milliseconds())
			if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
				return nil, fmt.Errorf("toxiproxy: %w", err)
			}
		}
		opts := b.server.optionsOf(0, b.pool)
		opts.Addr = proxy.Listen
		return b.loaded(ctx, k, l, opts)
	}
}
