-- push.lua: put a write into its lane, or aside for later.
-- KEYS: as lane.lua, 5 the write's payload
-- ARGV: as lane.lua, 3 ID  4 envelope  5 most writes in a lane (0: any number)  6 delay in us  7 or the moment in us
-- Reply: {1, depth before it} stored   {2} it was there already
--        {-1, depth} the lane is full   {-2} the same ID with another payload   {-3} it is a dead letter
local id, envelope, most, delay, at = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local write, ref = KEYS[5], ref_of(ARGV[3])

local depth = redis.call('ZCARD', LANE)
local place, differs = place_of(id, ref, write, envelope)
if place then
  if differs then return { -2 } end
  if place == 'dead' then return { -3 } end
  if place == 'lane' then indexed(oldest()) end
  return { 2 }
end
if most > 0 and depth >= most then return { -1, depth } end

local c = read_clock(CLOCK)
local moment = math.max(c.now + delay, at)
if moment > c.now then
  local s = stamp(c, 0) -- so that a clock set back is noticed from here on
  may_place(LATER)
  redis.call('SET', write, envelope)
  redis.call('ZADD', LATER, int(moment), ref)
  nudge(moment - s)
  return { 1, depth }
end

local s = stamp(c, greatest())
enlist(id, write, envelope, s)
if depth == 0 then nudge(0) end
return { 1, depth }
