-- forget.lua: delete a dead letter for good.
-- KEYS: as lane.lua, 11 the write's payload
-- ARGV: as lane.lua, 3 ID
-- Reply: 1 it is gone, 0 it is not a dead letter
local ref = ref_of(ARGV[3])
if not redis.call('ZSCORE', DEAD, ref) then return 0 end
redis.call('ZREM', DEAD, ref)
redis.call('HDEL', GRAVES, ref)
redis.call('DEL', KEYS[11])
return 1
