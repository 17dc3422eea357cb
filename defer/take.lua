-- take.lua: find lanes that are due and reserve them for a moment.
-- KEYS: 1 due  2 later  3 clock  4 alive  5 paused  6 shards ('' on all shards but the first)
-- ARGV: 1 what every key of the shard begins with  2 most lanes  3 lookback in us
--       4 life of the mark that somebody runs the queue, in ms (0: none)  5 reservation in us
--       6 how many locked lanes to pass over  7 most writes to move from later  8 number of shards
--       then lanes to leave to others
-- Reply: {us until the next look is worth while (-1: unknown), lanes, lanes whose lock has no end, torn references}
local due, later, clock, alive, paused = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, most, lookback = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local mark, reserve, pass, move = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

-- The first write needs no memory: see claim.lua.
if mark == 0 then
  redis.call('ZREM', due, '')
elseif redis.call('PEXPIRE', alive, mark) == 0 then
  redis.call('SET', alive, 1, 'PX', mark)
end
if KEYS[6] then redis.call('SET', KEYS[6], ARGV[8], 'NX') end

if redis.call('EXISTS', due, later) == 0 then return { -1, {}, {}, {} } end

local c = read_clock(clock)
local torn = {}
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', int(c.now), 'LIMIT', 0, move)) do
  local cut = string.find(ref, '\0', 1, true)
  if cut and redis.call('EXISTS', prefix .. 'write:' .. ref) == 1 then
    local name, id = string.sub(ref, 1, cut - 1), string.sub(ref, cut + 1)
    if name == '' then name = ref end
    local lane = prefix .. 'lane:' .. name
    local newest = tonumber(redis.call('ZREVRANGE', lane, 0, 0, 'WITHSCORES')[2]) or 0
    local moment = redis.call('HEXISTS', paused, name) == 1 and FAR or c.now - lookback
    redis.call('ZADD', due, 'LT', int(moment), name)
    redis.call('ZADD', lane, 'NX', int(stamp(c, newest)), id)
  else
    torn[#torn + 1] = ref
    redis.call('HDEL', prefix .. 'tries', ref)
  end
  redis.call('ZREM', later, ref)
end

local skip = {}
for i = 9, #ARGV do skip[ARGV[i]] = true end

local found, endless = {}, {}
local names = redis.call('ZRANGEBYSCORE', due, '-inf', int(c.now - lookback), 'LIMIT', 0, most + pass)
-- Should Redis's clock be set back, no moment that is written here may lie ahead
-- of ours; and once it has been, ours has to go on even if nobody pushes.
if names[1] or c.off > 0 then stamp(c, 0) end
local rest = false
for _, name in ipairs(names) do
  if #found == most then
    rest = true
    break
  end
  if skip[name] then -- it stays due
  elseif redis.call('EXISTS', prefix .. 'lane:' .. name) == 0 then
    redis.call('ZREM', due, name)
  else
    local life = redis.call('PTTL', prefix .. 'lock:' .. name)
    if life == -2 then
      found[#found + 1] = name
      redis.call('ZADD', due, int(c.now + reserve - lookback), name)
    else
      if life == -1 then endless[#endless + 1] = name end
      local look = (life < 0 or life > 1000) and 1000 or math.max(life, 1)
      redis.call('ZADD', due, int(c.now + look * 1000 - lookback), name)
    end
  end
end
if rest or #names == most + pass then return { 0, found, endless, torn } end

local next = -1
local heads = redis.call('ZRANGE', due, 0, #ARGV - 8, 'WITHSCORES') -- one of them is not skipped
for i = 1, #heads, 2 do
  local head = tonumber(heads[i + 1])
  if not skip[heads[i]] then
    if head < FAR then next = math.max(head + lookback - c.now, 0) end
    break
  end
end
local head = tonumber(redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2])
if head and (next < 0 or head - c.now < next) then next = math.max(head - c.now, 0) end
return { int(next), found, endless, torn }
