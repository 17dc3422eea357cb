-- lane.lua: the words every script about one lane shares. It runs nothing by itself.
-- KEYS: 1 lock  2 lane  3 clock  4 paused
-- ARGV: 1 the lane's name  2 what every key of the shard begins with
-- The other keys are made of what they begin with: to send them all with every
-- call costs more than half of its bytes.

local LOCK, LANE, CLOCK, PAUSED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local NAME, PREFIX = ARGV[1], ARGV[2]
local DUE, LATER, TRIES, ALIVE = PREFIX .. 'due', PREFIX .. 'later', PREFIX .. 'tries', PREFIX .. 'alive'
local DEAD, GRAVES = PREFIX .. 'dead', PREFIX .. 'graves'

-- ref_of names one write: the resource, a zero byte, the ID. A lane whose name
-- begins with a zero byte belongs to one write without a resource, and its name
-- is that write's reference already.
local function ref_of(id)
  if string.byte(NAME) == 0 then return NAME end
  return NAME .. '\0' .. id
end

local function payload_of(ref) return PREFIX .. 'write:' .. ref end

-- What tries keeps of a write: its starts, the moment before which it must not
-- start again, its first stamp, the token it was last started under ('-' once
-- that start has ended, '!' if it has halted its lane), and why it failed.
local function read_tries(text, first)
  if text then
    local n, rest, at, token, cause = string.match(text, '^(%d+) (%d+) (%d+) (%S+) ?(.*)$')
    if n then return tonumber(n), tonumber(rest), tonumber(at), token, cause end
  end
  return 0, 0, first, '-', ''
end

local function tries_text(n, rest, first, token, cause)
  return int(n) .. ' ' .. int(rest) .. ' ' .. int(first) .. ' ' .. token .. ' ' .. cause
end

local function write_tries(ref, n, rest, first, token, cause)
  redis.call('HSET', TRIES, ref, tries_text(n, rest, first, token, cause))
end

-- greatest is the newest stamp in the lane, 0 when it is empty.
local function greatest()
  return tonumber(redis.call('ZREVRANGE', LANE, 0, 0, 'WITHSCORES')[2]) or 0
end

-- nudge tells sleeping fetchers in how many microseconds a look is worth while.
-- It comes last in a script and may fail: they look by themselves, only later.
local function nudge(us)
  redis.pcall('PUBLISH', PREFIX .. 'nudge', int(math.max(us, 0)))
end

-- index writes into due the moment from which the lookback of this lane counts,
-- or takes a lane that is empty out of it. With ripe the lane is due already,
-- behind all others that are.
local function index(c, lookback, ripe)
  local head = redis.call('ZRANGE', LANE, 0, 0, 'WITHSCORES')
  if not head[1] then
    redis.call('ZREM', DUE, NAME)
    return
  end
  if redis.call('HEXISTS', PAUSED, NAME) == 1 then
    redis.call('ZADD', DUE, int(FAR), NAME)
    return
  end
  local moment = tonumber(head[2])
  local _, rest = read_tries(redis.call('HGET', TRIES, ref_of(head[1])), moment)
  if rest > c.now then
    moment = rest - lookback
  elseif ripe then
    moment = c.now - lookback
  end
  stamp(c, 0) -- a clock that is set back must not make this moment a distant one
  redis.call('ZADD', DUE, int(moment), NAME)
  nudge(moment + lookback - c.now)
end
