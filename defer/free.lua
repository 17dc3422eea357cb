-- free.lua: delete a lane's lock, whoever holds it. Its holder hears of it at its next renewal.
-- KEYS: as lane.lua
-- ARGV: as lane.lua
-- Reply: 1 there was a lock, 0 there was none
local freed = redis.call('DEL', LOCK)
ready()
return freed
