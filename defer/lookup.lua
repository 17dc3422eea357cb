-- lookup.lua: where a write is. It changes nothing.
-- KEYS: as lane.lua, 5 the write's payload
-- ARGV: as lane.lua, 3 ID
-- Reply: false it is nowhere, or
--        {place, score, now, envelope (false: torn), tries or grave (false: none),
--         how many are before it, lock (false: none), why its lane is paused (false: it is not)}
local id, write = ARGV[3], KEYS[5]
local ref = ref_of(id)
local now = int(read_clock(CLOCK).now)
local envelope = redis.call('GET', write)

local s = redis.call('ZSCORE', LANE, id)
if s then
  return { 'lane', s, now, envelope, redis.call('HGET', TRIES, ref), redis.call('ZRANK', LANE, id),
    redis.call('GET', LOCK), redis.call('HGET', PAUSED, NAME) }
end
s = redis.call('ZSCORE', LATER, ref)
if s then return { 'later', s, now, envelope, redis.call('HGET', TRIES, ref), 0, false, false } end
s = redis.call('ZSCORE', DEAD, ref)
if s then return { 'dead', s, now, envelope, redis.call('HGET', GRAVES, ref), 0, false, false } end
return false
