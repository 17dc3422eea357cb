package script_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/internal/script"
)

const clockKey = "{n:0}:clock"

// tick takes a stamp above ARGV[1], and replies it and the time it was taken.
var tick = script.New(`local c = read_clock(KEYS[1])
local now = c.now
return { int(stamp(c, tonumber(ARGV[1]))), int(now) }`)

// look reads the clock without taking a stamp.
var look = script.New(`return { int(read_clock(KEYS[1]).now) }`)

type fatal interface {
	Context() context.Context
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// numbers runs s on the clock.
func numbers(t fatal, c *redis.Client, s *script.Script, above int64) []int64 {
	t.Helper()
	r, err := script.Run(t.Context(), c, s, []string{clockKey}, above)
	if err != nil {
		t.Fatal(err)
	}
	var out []int64
	for _, v := range r.Value.([]any) {
		n, err := strconv.ParseInt(v.(string), 10, 64)
		if err != nil {
			t.Fatalf("replied %q: %v", r.Value, err)
		}
		out = append(out, n)
	}
	return out
}

func TestStampsAreTheServersTimeInMicroseconds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		last := int64(0)
		for range 200 {
			before := time.Now().Add(-time.Second).UnixMicro()
			got := numbers(t, c, tick, 0)[0]
			if got <= last || got < before || got > time.Now().Add(time.Second).UnixMicro() {
				t.Fatalf("the stamp %d after %d, at %d", got, last, time.Now().UnixMicro())
			}
			last = got
		}
		stored, err := c.Get(t.Context(), clockKey).Result()
		if err != nil || stored != fmt.Sprint(last) {
			t.Errorf("the clock holds %q, %v; the last stamp was %d", stored, err, last)
		}
	})
}

// start is the server's time at the beginning of the tests that move it.
var start = time.Date(2026, 3, 29, 1, 59, 59, 999_999_000, time.UTC)

func TestStampsOnlyRiseWhateverTheServersClockDoes(t *testing.T) {
	s := redistest.Mini(t)
	c := s.Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		now := start
		s.Mini().FlushAll()
		s.Mini().SetTime(now)
		var last, lastNow int64
		lost := false // the clock key, while time is behind the last stamp
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(rt, "forth")))
			case 1:
				now = now.Add(-time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(rt, "back")))
			case 2:
				now = now.Add(time.Duration(rapid.Int64Range(0, 3000).Draw(rt, "a moment")))
			case 3:
				// All is well as soon as time has passed what was given.
				if now.UnixMicro() > last {
					s.Mini().Del(clockKey)
					lost = true
				}
			default:
			}
			s.Mini().SetTime(now)
			above := int64(0)
			if rapid.Bool().Draw(rt, "with a floor") {
				above = max(last, now.UnixMicro()) + rapid.Int64Range(-1000, 1_000_000).Draw(rt, "above")
			}
			got := numbers(rt, c, tick, above)
			if got[0] <= last || got[0] <= above {
				rt.Fatalf("the stamp %d after %d, above %d", got[0], last, above)
			}
			if got[1] < lastNow && !lost {
				rt.Fatalf("time went back from %d to %d", lastNow, got[1])
			}
			if got[1] < now.UnixMicro() {
				rt.Fatalf("it is %d and the clock says %d", now.UnixMicro(), got[1])
			}
			last, lastNow, lost = got[0], got[1], false
		}
	})
}

// Waiting writes looked like the future when the server's clock had stepped
// back, for as long as the step was great.
func TestAfterAStepBackADelayTakesTwiceItsTimeAtMost(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, 2 * time.Second, 12 * time.Minute, 48 * time.Hour} {
		for _, stamps := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v with stamps %v", step, stamps), func(t *testing.T) {
				s := redistest.Mini(t)
				c := s.Client(t)
				s.Mini().SetTime(start)
				pushed := numbers(t, c, tick, 0)[0]
				now := start.Add(-step)
				s.Mini().SetTime(now)
				// What stamps while time passes, and what only looks.
				op := tick
				if !stamps {
					numbers(t, c, tick, 0)
					op = look
				}
				waited := time.Duration(0)
				for {
					got := numbers(t, c, op, 0)
					if got[len(got)-1] >= pushed+time.Second.Microseconds() {
						break
					}
					waited += 10 * time.Millisecond
					s.Mini().SetTime(now.Add(waited))
					if waited > 2100*time.Millisecond {
						t.Fatalf("a delay of 1s has not ended after %v", waited)
					}
				}
				if waited < time.Second {
					t.Errorf("a delay of 1s ended after %v", waited)
				}
			})
		}
	}
}

func TestClockReturnsToTheServersTime(t *testing.T) {
	s := redistest.Mini(t)
	c := s.Client(t)
	s.Mini().SetTime(start)
	numbers(t, c, tick, 0)
	now := start.Add(-12 * time.Minute)
	for range 25 * 60 {
		s.Mini().SetTime(now)
		numbers(t, c, tick, 0)
		now = now.Add(time.Second)
	}
	if got := numbers(t, c, look, 0)[0]; got != now.Add(-time.Second).UnixMicro() {
		t.Errorf("25 minutes after a step of 12 the clock is %d us off", got-now.Add(-time.Second).UnixMicro())
	}
	if stored, _ := s.Mini().Get(clockKey); strings.Contains(stored, " ") {
		t.Errorf("the clock still holds an offset: %q", stored)
	}
}

func TestGarbageInTheClockIsOvercome(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		for _, garbage := range []string{
			"", " ", "abc", "-5", "-5 -5", "1e15", "1e300", "nan", "inf", "0x7fffffffffff", "12 34 56", "12 -3", " 12", "12.5",
			strings.Repeat("9", 16), strings.Repeat("9", 400), "5 " + strings.Repeat("9", 400),
			"5 8000000000000000", "4400000000000000 4400000000000000", "8000000000000000", "\x00\xff", "12\n",
		} {
			if err := c.Set(t.Context(), clockKey, garbage, 0).Err(); err != nil {
				t.Fatal(err)
			}
			last := int64(0)
			for i := range 20 {
				got := numbers(t, c, tick, 0)[0]
				if got <= last || got < time.Now().Add(-time.Minute).UnixMicro() || got > 1<<53 {
					t.Fatalf("after %q in the clock, stamp %d is %d, the one before %d", garbage, i, got, last)
				}
				last = got
			}
		}
	})
}

func TestClockOfTheWrongTypeIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := s.Client(t)
		c.LPush(t.Context(), clockKey, "not a clock")
		_, err := script.Run(t.Context(), c, tick, []string{clockKey}, 0)
		if err == nil || errors.Is(err, script.ErrUnclear) || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("%v, want a clear WRONGTYPE", err)
		}
		if kind := c.Type(t.Context(), clockKey).Val(); kind != "list" {
			t.Errorf("the clock is a %s now", kind)
		}
	})
}
