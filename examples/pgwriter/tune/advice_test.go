package tune_test

import (
	"strings"
	"testing"
	"time"

	"github.com/deferlock/deferlock/examples/pgwriter/tune"
)

const ms = time.Millisecond

// measured is a point that did so many writes a second at full load in two
// rounds that were apart by 2 %, ten of them in a transaction, and had a p99.
func measured(batch int, lookback time.Duration, writes float64, p99 time.Duration) tune.Measured {
	return rounds(batch, lookback, []float64{0.99 * writes, 1.01 * writes}, []time.Duration{p99 * 99 / 100, p99 * 101 / 100})
}

func rounds(batch int, lookback time.Duration, writes []float64, p99s []time.Duration) tune.Measured {
	m := tune.Measured{Point: tune.Point{Batch: batch, Lookback: lookback}}
	for i := range writes {
		m.Full = append(m.Full, tune.Figures{Writes: writes[i], Transactions: writes[i] / 10})
		m.Rate = append(m.Rate, tune.Figures{Writes: 100, Transactions: 25, P50: p99s[i] / 2, P99: p99s[i]})
	}
	return m
}

// commits lets m have so many transactions a second at the rate.
func commits(n float64, m tune.Measured) tune.Measured {
	for i := range m.Rate {
		m.Rate[i].Transactions = n
	}
	return m
}

func TestRecommendation(t *testing.T) {
	for _, c := range []struct {
		name   string
		points []tune.Measured
		budget time.Duration
		want   tune.Point
		says   []string
	}{
		{
			name: "most throughput by far",
			points: []tune.Measured{
				measured(1, 0, 500, 10*ms), measured(100, 0, 1000, 12*ms),
				measured(1, 200*ms, 500, 240*ms), measured(100, 200*ms, 4100, 260*ms),
			},
			want: tune.Point{Batch: 100, Lookback: 200 * ms},
			says: []string{"Recommended: lookback 200 ms, batch 100: 10 writes per transaction, 4.1 times the throughput of lookback 0, p99 260 ms at 350 writes a second.\n"},
		},
		{
			name:   "a little more throughput is not worth a later write",
			points: []tune.Measured{measured(100, 0, 1000, 10*ms), measured(100, 50*ms, 1090, 60*ms)},
			want:   tune.Point{Batch: 100},
			says:   []string{"lookback 0, batch 100", "Reason: of the settings with at least 90 % of the most writes a second (1090, lookback 50 ms, batch 100)"},
		},
		{
			name:   "a fifth more is",
			points: []tune.Measured{measured(100, 0, 1000, 10*ms), measured(100, 50*ms, 1200, 60*ms)},
			want:   tune.Point{Batch: 100, Lookback: 50 * ms},
			says:   []string{"1.2 times the throughput of lookback 0"},
		},
		{
			name:   "unless the rounds overlap",
			points: []tune.Measured{rounds(100, 0, []float64{900, 1300}, []time.Duration{10 * ms, 11 * ms}), measured(100, 50*ms, 1290, 60*ms)},
			want:   tune.Point{Batch: 100},
		},
		{
			name:   "the same p99: the smallest batch of the shortest lookback",
			points: []tune.Measured{measured(100, 0, 1000, 10*ms), measured(20, 0, 1000, 10200*time.Microsecond), measured(5, 50*ms, 1000, 10*ms)},
			want:   tune.Point{Batch: 20},
			says:   []string{"lookback 0, batch 20: 10 writes per transaction, p99 10.2 ms"}, // nothing smaller to compare with
		},
		{
			name:   "no difference",
			points: []tune.Measured{measured(1, 0, 1000, 10*ms), measured(20, 0, 1020, 5*ms)},
			want:   tune.Point{Batch: 20},
			says:   []string{"no difference in throughput from batch 1 that this run can tell"},
		},
		{
			name:   "with a limit, what is over it does not count",
			points: []tune.Measured{measured(1, 0, 500, 10*ms), measured(100, 0, 1000, 20*ms), measured(100, time.Second, 4000, 1100*ms)},
			budget: 100 * ms,
			want:   tune.Point{Batch: 100},
			says:   []string{"2 times the throughput of batch 1", "and a p99 of 100 ms at most, none commits less often", "most writes a second (1000, lookback 0, batch 100)"},
		},
		{
			name: "a limit is used to commit less often",
			points: []tune.Measured{
				commits(90, measured(100, 0, 1000, 10*ms)), commits(80, measured(100, 50*ms, 1000, 60*ms)),
				commits(30, measured(100, 200*ms, 1000, 220*ms)), commits(5, measured(100, time.Second, 1000, 1100*ms)),
			},
			budget: 300 * ms,
			want:   tune.Point{Batch: 100, Lookback: 200 * ms},
			says:   []string{"lookback 200 ms:   3.33 writes per transaction,     30 commits a second, p99 220 ms\n"},
		},
		{
			name: "but not for nothing",
			points: []tune.Measured{
				commits(100, measured(100, 0, 1000, 10*ms)), commits(98, measured(100, 50*ms, 1000, 60*ms)),
			},
			budget: 300 * ms,
			want:   tune.Point{Batch: 100},
		},
		{
			name: "without a limit, fewer commits are not worth a later write",
			points: []tune.Measured{
				commits(100, measured(100, 0, 1000, 10*ms)), commits(10, measured(100, 50*ms, 1000, 60*ms)),
			},
			want: tune.Point{Batch: 100},
			says: []string{"What a lookback buys"},
		},
		{
			name:   "a budget that nothing keeps",
			points: []tune.Measured{measured(1, 0, 500, 10*ms), measured(100, time.Second, 4000, 1100*ms)},
			budget: 5 * ms,
			want:   tune.Point{Batch: 100, Lookback: time.Second},
			says:   []string{"No setting keeps p99 within 5 ms at 350 writes a second: lookback 0, batch 1 comes closest with 10 ms."},
		},
		{
			name:   "one round: a tenth is noise",
			points: []tune.Measured{rounds(100, 0, []float64{1000}, []time.Duration{10 * ms}), rounds(100, 50*ms, []float64{1090}, []time.Duration{10900 * time.Microsecond})},
			want:   tune.Point{Batch: 100},
			says:   []string{"differences below 10 % of writes a second, 10 % of transactions a second and 10 % of p99."},
		},
		{
			name:   "one point",
			points: []tune.Measured{measured(100, 0, 1000, 10*ms)},
			want:   tune.Point{Batch: 100},
			says:   []string{"Recommended: lookback 0, batch 100: 10 writes per transaction, p99 10 ms"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := tune.Recommend(tune.Result{Points: c.points, Rate: 350}, c.budget)
			if got.Pick.Point != c.want {
				t.Errorf("recommended %v, want %v", got.Pick.Point, c.want)
			}
			for _, want := range c.says {
				if !strings.Contains(got.Text, want) {
					t.Errorf("it does not say %q:\n%s", want, got.Text)
				}
			}
		})
	}
}

func TestRecommendationThatCannotDoTheRateSaysSo(t *testing.T) {
	m := measured(1, 0, 100, 10*ms)
	m.Rate[0].Behind, m.Rate[1].Behind = true, true
	if got := tune.Recommend(tune.Result{Points: []tune.Measured{m}, Rate: 500}, 0); !strings.Contains(got.Text, "cannot do 500 writes a second") {
		t.Error(got.Text)
	}
}

func TestRoundsThatAreFarApartAreWarnedOf(t *testing.T) {
	quiet, busy := measured(1, 0, 100, 10*ms), rounds(1, 0, []float64{100, 150}, []time.Duration{10 * ms, 10 * ms})
	for warned, m := range map[bool]tune.Measured{false: quiet, true: busy} {
		got := tune.Recommend(tune.Result{Points: []tune.Measured{m}, Rate: 50}, 0)
		if strings.Contains(got.Text, "run it again") != warned {
			t.Errorf("want a warning: %v\n%s", warned, got.Text)
		}
	}
}

func TestDefaultRateIsWhatEverySettingCanDo(t *testing.T) {
	got := tune.RateFor([]tune.Measured{measured(1, 0, 1234, ms), measured(5, 0, 9000, ms)})
	if got != 860 { // 0.7 of 1234 is 863.8
		t.Errorf("%v writes a second, want 860", got)
	}
	if got := tune.RateFor([]tune.Measured{measured(1, 0, 0, ms)}); got != 1 {
		t.Errorf("%v writes a second for a setting that did nothing, want 1", got)
	}
}
