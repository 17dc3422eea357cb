-- admit.lua: let a write run now under the lock, or put it into its lane.
-- KEYS: as lane.lua, 11 the write's payload
-- ARGV: as lane.lua, 3 token  4 lock's life in ms  5 ID  6 envelope  7 most writes in a lane (0: any number)
-- Reply: {1, fence} it may run; the lock is taken
--        {2, why, how many are before it, ms the lock still lives, 1 if somebody runs the queue} it waits
--           why: 1 the lock is held, 2 others wait, 3 the lane is paused, 4 it was there already
--        {-1, depth} the lane is full   {-2} the same ID with another payload   {-3} it is a dead letter
local token, ttl, id, envelope, most = ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local write, ref = KEYS[11], ref_of(ARGV[5])

local holder = redis.call('GET', LOCK)
local depth = redis.call('ZCARD', LANE)

local function waits(why, ahead)
  return { 2, why, ahead, redis.call('PTTL', LOCK), redis.call('EXISTS', ALIVE) }
end

local place, differs = place_of(id, ref, write, envelope)
if place then
  if differs then return { -2 } end
  if place == 'dead' then return { -3 } end
  if place == 'later' then return waits(4, depth) end
  indexed(oldest())
  return waits(4, redis.call('ZRANK', LANE, id))
end

local paused = redis.call('HEXISTS', PAUSED, NAME) == 1
if holder == token or (not holder and depth == 0 and not paused) then
  local fence = stamp(read_clock(CLOCK), 0)
  redis.call('SET', LOCK, token, 'PX', ttl)
  return { 1, int(fence) }
end

if most > 0 and depth >= most then return { -1, depth } end
enlist(id, write, envelope, stamp(read_clock(CLOCK), greatest()))
return waits(paused and 3 or (holder and 1 or 2), depth)
