-- revive.lua: put a dead letter back at the end of its lane, as if it had never been started.
-- KEYS: as lane.lua, 5 the write's payload
-- ARGV: as lane.lua, 3 ID
-- Reply: 1 it waits again, 0 it is not a dead letter, -1 its payload was gone and it is no dead letter any more
local id, write = ARGV[3], KEYS[5]
local ref = ref_of(id)
if not redis.call('ZSCORE', DEAD, ref) then return 0 end
local envelope = redis.call('GET', write)
if envelope then
  enlist(id, write, envelope, stamp(read_clock(CLOCK), greatest()))
end
redis.call('ZREM', DEAD, ref)
redis.call('HDEL', GRAVES, ref)
if not envelope then return -1 end
nudge(0)
return 1
