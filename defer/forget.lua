-- forget.lua: delete a dead letter for good.
-- KEYS: as lane.lua, 5 the write's payload
-- ARGV: as lane.lua, 3 ID
-- Reply: 1 it is gone, 0 it is not a dead letter
local id = ARGV[3]
local ref = ref_of(id)
if not redis.call('ZSCORE', DEAD, ref) then return 0 end
redis.call('ZREM', DEAD, ref)
redis.call('HDEL', GRAVES, ref)
-- A burial that was stopped half way left the write in its lane: it needs its payload.
if not redis.call('ZSCORE', LANE, id) then redis.call('DEL', KEYS[5]) end
return 1
