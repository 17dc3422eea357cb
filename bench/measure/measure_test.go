package measure_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const ms = int64(time.Millisecond)

// call and run make records in which everything is in ms.
func call(seq, resource int32, call, ret int64) measure.Submit {
	if ret > 0 {
		ret *= ms
	}
	return measure.Submit{Seq: seq, Resource: resource, Call: call * ms, Return: ret}
}

func run(seq, resource int32, start, end int64) measure.Run {
	return measure.Run{Seq: seq, Resource: resource, Start: start * ms, End: end * ms}
}

func TestFiguresSayWhatHappened(t *testing.T) {
	for name, c := range map[string]struct {
		records measure.Records
		want    measure.Figures
	}{
		"nothing": {measure.Records{}, measure.Figures{measure.Done: 0, measure.Unfinished: 0}},
		"one write, done by the call": {
			measure.Records{Submits: []measure.Submit{call(1, 0, 10, 14)}, Runs: []measure.Run{run(1, 0, 11, 13)}},
			measure.Figures{measure.Done: 1, measure.Rate: 1000. / 13, measure.Deferred: 0, measure.DoneP50: 3, measure.Overlaps: 0},
		},
		"one write, done later": {
			measure.Records{Submits: []measure.Submit{call(1, 0, 10, 14)}, Runs: []measure.Run{run(1, 0, 19, 20)}},
			measure.Figures{measure.Deferred: 1, measure.DoneP99: 10, measure.Rate: 50},
		},
		"in order, the second waiting": {
			measure.Records{
				Submits: []measure.Submit{call(1, 0, 10, 20), call(2, 0, 11, 12)},
				Runs:    []measure.Run{run(1, 0, 11, 19), run(2, 0, 21, 22)},
			},
			measure.Figures{measure.HandoverP50: 2000, measure.HandoverMax: 2000, measure.Overtakings: 0, measure.Overlaps: 0},
		},
		"overtaken by one that came when it had been accepted": {
			measure.Records{
				Submits: []measure.Submit{call(1, 0, 1, 2), call(2, 0, 3, 6)},
				Runs:    []measure.Run{run(2, 0, 4, 5), run(1, 0, 7, 8)},
			},
			measure.Figures{measure.Overtakings: 1, measure.Overlaps: 0},
		},
		"not overtaken: they were handed over at the same time": {
			measure.Records{
				Submits: []measure.Submit{call(1, 0, 1, 4), call(2, 0, 3, 6)},
				Runs:    []measure.Run{run(2, 0, 4, 5), run(1, 0, 7, 8)},
			},
			measure.Figures{measure.Overtakings: 0},
		},
		"two at once on one resource": {
			measure.Records{
				Submits: []measure.Submit{call(1, 0, 1, 9), call(2, 0, 1, 9), call(3, 1, 1, 9)},
				Runs:    []measure.Run{run(1, 0, 2, 6), run(2, 0, 5, 8), run(3, 1, 2, 8)},
			},
			measure.Figures{measure.Overlaps: 1, measure.Done: 3},
		},
		"once too often": {
			measure.Records{Submits: []measure.Submit{call(1, 0, 1, 9)}, Runs: []measure.Run{run(1, 0, 2, 3), run(1, 0, 4, 5)}},
			measure.Figures{measure.Twice: 1, measure.Done: 1},
		},
		"one failed, one was cut off, one was lost": {
			measure.Records{
				Submits: []measure.Submit{call(1, 0, 1, 0), call(2, 1, 1, measure.CutOff), call(3, 2, 1, 2)},
			},
			measure.Figures{measure.Failed: 1, measure.Unfinished: 2, measure.Done: 0, measure.Deferred: 0.5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.records.Figures(0, 100*ms)
			for m, want := range c.want {
				if v := got[m]; v < want*0.999 || v > want*1.001 {
					t.Errorf("%s is %v, want %v", m, v, want)
				}
			}
		})
	}
}

// Nobody had handed a write over while the resource lay idle.
func TestAResourceThatNobodyWantsIsNotHandedOver(t *testing.T) {
	r := measure.Records{
		Submits: []measure.Submit{call(1, 0, 1, 3), call(2, 0, 50, 55)},
		Runs:    []measure.Run{run(1, 0, 2, 3), run(2, 0, 51, 52)},
	}
	if v, ok := r.Figures(0, 100*ms)[measure.HandoverMax]; ok {
		t.Errorf("a hand-over of %v µs", v)
	}
}

func TestUnfinishedRoundsAreNotFasterForIt(t *testing.T) {
	r := measure.Records{
		Submits: []measure.Submit{call(1, 0, 0, 1), call(2, 0, 0, 1)},
		Runs:    []measure.Run{run(1, 0, 1, 2)},
	}
	if v := r.Figures(0, 1000*ms)[measure.Rate]; v != 1 {
		t.Errorf("one write in a second is %v writes/s", v)
	}
}

func TestSummaryIsTheMedianAndTheExtremes(t *testing.T) {
	rounds := []measure.Figures{{measure.Rate: 3}, {measure.Rate: 1}, {measure.Rate: 2, measure.Bound: 1}, {measure.Rate: 10}}
	got := measure.Summarise(rounds)
	if want := (measure.Spread{Median: 2.5, Min: 1, Max: 10}); got[measure.Rate] != want {
		t.Errorf("%v, want %v", got[measure.Rate], want)
	}
	if want := (measure.Spread{Median: 1, Min: 1, Max: 1}); got[measure.Bound] != want {
		t.Errorf("%v, want %v", got[measure.Bound], want)
	}
}

func TestRecorderKeepsWhatThereIsRoomForAndCountsTheRest(t *testing.T) {
	r := measure.NewRecorder(2, 1)
	for i := range 3 {
		place, ok := r.Next()
		if ok != (i < 2) {
			t.Errorf("place %d: %v", i, ok)
		}
		if ok {
			r.Submitted(place, call(int32(i), 0, 1, 2))
		}
	}
	r.Ran(run(0, 0, 1, 2))
	r.Ran(run(1, 0, 2, 3))
	if got := r.Records(); len(got.Submits) != 2 || len(got.Runs) != 1 || r.Count() != 2 {
		t.Errorf("%v, %d runs", got, r.Count())
	}
}

// The proxy of the library's own tests reads every request, and counts the same.
func TestWireCountsRoundTripsLikeAProxy(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Real(t))
	var wire measure.Wire
	rdb := wire.Client(redis.Options{Addr: proxy.Addr(), DisableIdentity: true, PoolSize: 4})
	defer rdb.Close()
	wire.CountSent(rdb)
	ctx := t.Context()
	if err := rdb.Ping(ctx).Err(); err != nil { // opens the connection
		t.Fatal(err)
	}
	if _, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error { return p.Ping(ctx).Err() }); err != nil {
		t.Fatal(err) // and the one for pipelines
	}
	proxy.Reset()
	trips, sent := wire.RoundTrips(), wire.Sent()
	for range 5 {
		rdb.Set(ctx, "a", "1", 0)
	}
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 10 {
			p.Incr(ctx, "a")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	trips, sent = wire.RoundTrips()-trips, wire.Sent()-sent
	if trips != 6 || trips != proxy.RoundTrips() || sent != 15 || sent != proxy.Requests() {
		t.Errorf("%d round trips and %d commands; the proxy saw %d and %d", trips, sent, proxy.RoundTrips(), proxy.Requests())
	}
}

func TestServerCountsWhatScriptsCallAndNotTheQuestion(t *testing.T) {
	rdb := redistest.Real(t).ClientWith(t, func(o *redis.Options) { o.PoolSize = 1 })
	ctx := t.Context()
	look := func() measure.Server {
		s, err := measure.ReadServer(ctx, rdb)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	look()
	before := look()
	if got := look().Since(before); got.Commands != 0 || len(got.Calls) != 0 {
		t.Errorf("nothing was done, and counted was %d: %v", got.Commands, got.Calls)
	}
	before = look()
	rdb.Set(ctx, "a", "1", 0)
	rdb.Eval(ctx, "redis.call('GET', KEYS[1]) return redis.call('DEL', KEYS[1])", []string{"a"})
	got := look().Since(before)
	if got.Commands != 4 || got.Calls["get"] != 1 || got.Calls["eval"] != 1 || len(got.Calls) != 4 {
		t.Errorf("%d commands: %v", got.Commands, got.Calls)
	}
	if got.Clients = look().Clients; got.Clients != 1 || look().Memory == 0 || look().CPU == 0 {
		t.Errorf("%d connections, %d bytes, %v", got.Clients, look().Memory, look().CPU)
	}
}

func TestEveryMetricIsShownOnce(t *testing.T) {
	all := slices.Clone(measure.All)
	slices.Sort(all)
	if len(slices.Compact(all)) != len(measure.All) {
		t.Error("a metric is shown twice")
	}
}
