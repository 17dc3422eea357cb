package torture_test

import (
	"github.com/deferlock/deferlock/integration/servers"
)

// newRedis is a Redis whose clock can be set.
var newRedis = servers.NewRedisWithClock

// The clock jumps ahead and stays there; or it is set back for a while. It is
// never left behind where it was: an orphan's lock ends by Redis's clock, and
// would live for as much longer.
func init() {
	faults = append(faults,
		fault{"clock set ahead", func(r *run) {
			r.clock += r.drawn(1000, 120_000)
			r.redis.SetClock(r.t, r.clock)
		}},
		fault{"clock set back", func(r *run) {
			r.redis.SetClock(r.t, r.clock-r.drawn(1000, 720_000))
			r.pause(100, 1500)
			r.redis.SetClock(r.t, r.clock)
		}},
	)
}
