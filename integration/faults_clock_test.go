//go:build linux

package integration_test

import (
	"testing"
	"time"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
)

// Redis's clock jumps two minutes ahead and twelve back, while writes wait and
// locks are held. Order is that of the stamps, which only rise.
func TestRow23RedisClockIsSet(t *testing.T) {
	t.Parallel()
	redis, db := servers.NewRedisWithClock(t), servers.AnyDatabase(t)
	r := &rig{Fleet: fleet.New(t, fleet.Single(redis.Addr()), db.URL()), redis: redis, database: db}
	pair(r, nil)
	for _, off := range []time.Duration{2 * time.Minute, -12 * time.Minute, 0} {
		redis.SetClock(t, off)
		now, err := redis.Client(t).Time(t.Context()).Result()
		if err != nil || now.Sub(time.Now().Add(off)).Abs() > 5*time.Second {
			t.Fatalf("the clock is not set: %v, %v", now, err)
		}
		r.more(100)
	}
	r.Finish()
}

// The clock is set back, and Redis loses its memory of the stamps at the same
// time: the database's fences are greater than what Redis gives out. The true
// holder lifts Redis's clock and goes on. A holder from before, whose fence the
// database has not seen yet, is above what the clock is lifted to, and may still
// write what it had claimed: order is not promised when both happen at once.
func TestRow23ClockSetBackAndForgotten(t *testing.T) {
	t.Parallel()
	redis, db := servers.NewRedisWithClock(t), servers.AnyDatabase(t)
	r := &rig{Fleet: fleet.New(t, fleet.Single(redis.Addr()), db.URL()), redis: redis, database: db}
	r.MayLose, r.ClockLost, r.MayOvertake = true, true, true
	pair(r, nil)
	redis.SetClock(t, -12*time.Minute)
	redis.Do(t, "flushall")
	r.more(100)
	r.Finish()
}
