-- claim.lua: take a lane's lock and start its oldest writes.
-- KEYS: as lane.lua
-- ARGV: as lane.lua, 3 token  4 lock's life in ms  5 most writes  6 most bytes  7 lookback in us
-- Reply: {1, fence, now, torn IDs, writes as start_batch gives them} the lock is taken
--        {0, why, ms the lock still lives} nothing to do here now; why: 1 held, 2 empty or resting, 3 paused
local token, ttl, most, bytes, lookback = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local c = read_clock(CLOCK)
local holder = redis.call('GET', LOCK)
if holder and holder ~= token then
  local life = redis.call('PTTL', LOCK)
  if redis.call('EXISTS', LANE) == 1 then
    local look = (life < 0 or life > 1000) and 1000 or math.max(life, 1)
    stamp(c, 0)
    redis.call('ZADD', DUE, 'XX', int(c.now + look * 1000 - lookback), NAME)
  end
  return { 0, 1, life }
end
if not holder and redis.call('HEXISTS', PAUSED, NAME) == 1 then
  index(c, lookback)
  return { 0, 3, 0 }
end

-- When memory is full a script may write as soon as it has done one write that
-- needs none: a queue that cannot be drained would stay full.
redis.call('PEXPIRE', LOCK, ttl)
local got, torn = start_batch(c, token, most, bytes)
if not got[1] and not holder then
  index(c, lookback)
  -- Who takes a torn write away must be told of it, so he gets the lock for that.
  if not torn[1] then return { 0, 2, 0 } end
end
local fence = stamp(c, greatest())
redis.call('SET', LOCK, token, 'PX', ttl)
return { 1, int(fence), int(c.now), torn, got }
