package deferral

import (
	_ "embed"

	"github.com/deferlock/deferlock/internal/keyspace"
	"github.com/deferlock/deferlock/internal/script"
)

// The scripts, each with its keys, arguments and reply in its first lines.
// lane.lua, place.lua, batch.lua and ready.lua are the words they share.
var (
	//go:embed lane.lua
	laneLua string
	//go:embed place.lua
	placeLua string
	//go:embed batch.lua
	batchLua string
	//go:embed grant.lua
	grantLua string
	//go:embed admit.lua
	admitLua string
	//go:embed push.lua
	pushLua string
	//go:embed take.lua
	takeLua string
	//go:embed claim.lua
	claimLua string
	//go:embed depart.lua
	departLua string
	//go:embed leave.lua
	leaveLua string
	//go:embed ready.lua
	readyLua string
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
	//go:embed letters.lua
	lettersLua string
	//go:embed inspect.lua
	inspectLua string

	admitScript   = script.NewWithShortcut(grantLua, laneLua, placeLua, admitLua)
	pushScript    = script.New(laneLua, placeLua, pushLua)
	takeScript    = script.New(takeLua)
	claimScript   = script.New(laneLua, batchLua, claimLua)
	leaveScript   = script.NewWithShortcut(departLua, laneLua, placeLua, batchLua, leaveLua)
	cancelScript  = script.New(laneLua, readyLua, cancelLua)
	reviveScript  = script.New(laneLua, placeLua, reviveLua)
	forgetScript  = script.New(laneLua, forgetLua)
	pauseScript   = script.New(laneLua, readyLua, pauseLua)
	freeScript    = script.New(laneLua, readyLua, freeLua)
	lookupScript  = script.New(laneLua, lookupLua)
	surveyScript  = script.New(surveyLua)
	lettersScript = script.New(lettersLua)
	inspectScript = script.New(inspectLua)
)

// laneKeys are the keys of lane.lua, with room for one more.
func laneKeys(h *keyspace.Shard, lane string) []string {
	return append(make([]string, 0, 5), h.Lock(lane), h.Lane(lane), h.Clock, h.Paused)
}

// writeKeys are the keys of lane.lua and the payload of one write.
func writeKeys(h *keyspace.Shard, resource, id string) []string {
	return append(laneKeys(h, keyspace.LaneOf(resource, id)), h.Write(keyspace.Ref(resource, id)))
}
