package pgfence_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deferlock/deferlock/internal/pgtest"
	"github.com/deferlock/deferlock/worker"
	"github.com/deferlock/deferlock/worker/pgfence"
)

// What a fenced transaction costs: the same transaction with the fence and
// without it, in turn, on one server. The ratio is of the medians of rounds. The
// aim is 1.3 at the most. On a loopback all there is to wait for is the two
// processors, and the ratio is at its worst; with a server that is 1 ms away the
// round trips count, and the fence adds none.
func BenchmarkFencedAgainstPlain(b *testing.B) {
	server := pgtest.Start(b)
	if os.Getenv("DATABASE_URL") == "" {
		server = pgtest.Private(b) // with fsync
	}
	for _, away := range []time.Duration{0, time.Millisecond} {
		for _, sync := range []string{"off", "on"} {
			b.Run(fmt.Sprintf("away=%v/synchronous_commit=%s", away, sync), func(b *testing.B) {
				cfg := server.Config(b, server.Schema(b))
				cfg.ConnConfig.RuntimeParams["synchronous_commit"] = sync
				if away > 0 {
					(&pgtest.Line{Delay: away}).Lead(cfg)
				}
				pool := pgtest.Connect(b, cfg)
				prepare(b, pool)
				execute(b, pool, "INSERT INTO account SELECT 'a' || i, 0 FROM generate_series(0, 999) i")
				compare(b, pool)
			})
		}
	}
}

// compare runs rounds of both kinds in turn, so that what else the machine does
// hits both alike.
func compare(b *testing.B, pool *pgxpool.Pool) {
	const round = 200
	var plain, fenced []time.Duration
	n := 0
	for range 1000 { // each resource's first fence is another statement's work
		n++
		ctx := calling(b.Context(), worker.Info{ID: strconv.Itoa(n), Resource: account(n), Fence: int64(n)})
		if err := pgfence.Write(ctx, pool, credit(ctx, n)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		plain = append(plain, timed(b, round, func() error {
			n++
			return pgx.BeginFunc(b.Context(), pool, credit(b.Context(), n))
		}))
		fenced = append(fenced, timed(b, round, func() error {
			n++
			ctx := calling(b.Context(), worker.Info{ID: strconv.Itoa(n), Resource: account(n), Fence: int64(n)})
			return pgfence.Write(ctx, pool, credit(ctx, n))
		}))
	}
	slices.Sort(plain)
	slices.Sort(fenced)
	p, f := plain[len(plain)/2]/round, fenced[len(fenced)/2]/round
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(p.Microseconds()), "µs/plain")
	b.ReportMetric(float64(f.Microseconds()), "µs/fenced")
	b.ReportMetric(float64(f)/float64(p), "ratio")
}

func timed(b *testing.B, n int, f func() error) time.Duration {
	b.Helper()
	began := time.Now()
	for range n {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

func account(n int) string { return "a" + strconv.Itoa(n%1000) }

func credit(ctx context.Context, n int) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + 1 WHERE id = $1", account(n))
		return err
	}
}
