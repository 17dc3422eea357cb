-- cancel.lua: take out a write that has not been started.
-- KEYS: as lane.lua, 5 the write's payload
-- ARGV: as lane.lua, 3 ID
-- Reply: 1 it is gone, 0 it was not there, -1 it is running, -2 it is a dead letter
local id, write = ARGV[3], KEYS[5]
local ref = ref_of(id)

if redis.call('ZSCORE', LANE, id) then
  local n, _, _, token = read_tries(redis.call('HGET', TRIES, ref), 0)
  if n > 0 and redis.call('GET', LOCK) == token then return -1 end
elseif not redis.call('ZSCORE', LATER, ref) then
  return redis.call('ZSCORE', DEAD, ref) and -2 or 0
end

-- A script that was stopped half way may have left it in both places.
redis.call('ZREM', LATER, ref)
if redis.call('ZREM', LANE, id) == 1 then ready() end
redis.call('DEL', write)
redis.call('HDEL', TRIES, ref)
return 1
