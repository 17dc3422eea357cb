package deferral

import (
	_ "embed"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// The scripts, each with its keys, arguments and reply in its first lines.
// lane.lua, place.lua and batch.lua are the words they share.
var (
	//go:embed lane.lua
	laneLua string
	//go:embed place.lua
	placeLua string
	//go:embed batch.lua
	batchLua string
	//go:embed admit.lua
	admitLua string
	//go:embed push.lua
	pushLua string
	//go:embed take.lua
	takeLua string
	//go:embed claim.lua
	claimLua string
	//go:embed leave.lua
	leaveLua string
	//go:embed cancel.lua
	cancelLua string
	//go:embed revive.lua
	reviveLua string
	//go:embed forget.lua
	forgetLua string
	//go:embed pause.lua
	pauseLua string
	//go:embed free.lua
	freeLua string
	//go:embed lookup.lua
	lookupLua string
	//go:embed survey.lua
	surveyLua string

	admitScript  = script.New(laneLua, placeLua, admitLua)
	pushScript   = script.New(laneLua, placeLua, pushLua)
	takeScript   = script.New(takeLua)
	claimScript  = script.New(laneLua, batchLua, claimLua)
	leaveScript  = script.New(laneLua, placeLua, batchLua, leaveLua)
	cancelScript = script.New(laneLua, cancelLua)
	reviveScript = script.New(laneLua, placeLua, reviveLua)
	forgetScript = script.New(laneLua, forgetLua)
	pauseScript  = script.New(laneLua, pauseLua)
	freeScript   = script.New(laneLua, freeLua)
	lookupScript = script.New(laneLua, lookupLua)
	surveyScript = script.New(surveyLua)
)

// laneKeys are the keys of lane.lua, with room for one more.
func laneKeys(h *keyspace.Shard, lane string) []string {
	return append(make([]string, 0, 11), h.Lock(lane), h.Lane(lane), h.Due, h.Clock, h.Tries,
		h.Paused, h.Later, h.Dead, h.Graves, h.Alive)
}

// writeKeys are the keys of lane.lua and the payload of one write.
func writeKeys(h *keyspace.Shard, resource, id string) []string {
	return append(laneKeys(h, keyspace.LaneOf(resource, id)), h.Write(keyspace.Ref(resource, id)))
}
