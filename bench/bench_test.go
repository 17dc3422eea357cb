package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/deferlock/deferlock/bench/load"
	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
)

// BenchmarkWrite is for profiles of one peer:
//
//	go test -run xxx -bench 'Write/deferlock/writers=64' -cpuprofile cpu.prof
//
// To compare peers use the program, which interleaves them.
func BenchmarkWrite(b *testing.B) {
	for _, k := range []peers.Kind{peers.Ping, peers.Bare, peers.Redislock, peers.Kaito, peers.Deferlock} {
		for _, writers := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/writers=%d", k.Name, writers), func(b *testing.B) {
				benchmark(b, k, load.Load{Writers: writers, Most: b.N, For: time.Hour})
			})
		}
	}
}

// BenchmarkHot has 16 writers on one resource; the work takes no time.
func BenchmarkHot(b *testing.B) {
	for _, k := range []peers.Kind{peers.Bare, peers.Redislock, peers.Kaito, peers.Deferlock} {
		b.Run(k.Name, func(b *testing.B) {
			benchmark(b, k, load.Load{Writers: 16, Resources: 1, Most: b.N, For: time.Hour})
		})
	}
}

func benchmark(b *testing.B, k peers.Kind, l load.Load) {
	n := newBench(b)
	s, err := n.openWith(k, 0, l.Takes, n.server.optionsOf(0, 64))
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	started := load.Start(b.Context(), s.peer)
	defer func() {
		if err := started.Stop(); err != nil {
			b.Error(err)
		}
	}()
	if err := s.warm(b.Context(), l); err != nil {
		b.Fatal(err)
	}
	submit, rec := l.Prepare(), measure.NewRecorder(l.Most, 2*l.Most)
	s.work.Record(rec)
	b.ReportAllocs()
	b.ResetTimer()
	submit(b.Context(), s.peer, rec)
	load.Await(b.Context(), rec.Count, b.N)
	b.StopTimer()
	if f := rec.Records().Figures(0, 0); f[measure.Failed] > 0 {
		b.Errorf("%v writes failed", f[measure.Failed])
	}
}
