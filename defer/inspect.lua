-- inspect.lua: what is wrong with some keys, each judged with all that belongs to it. It changes nothing.
-- KEYS: 1 due  2 later  3 dead
-- ARGV: 1 what every key of the shard begins with  2 most writes of a lane to look at, then kind and name in turn:
--       lock  a lane      it must end
--       lane  a lane      it must be in due, its writes must have payloads
--       write a reference it must have a place
--       place a reference it must have a payload
-- Reply: code and name in turn: 1 lock without an end, 2 lane not in due, 3 payload without a place (a reference),
--        4 place without a payload (a reference), 5 a lane that is too long to be looked at here
local prefix, most = ARGV[1], tonumber(ARGV[2])
local out = {}

local function report(code, name)
  out[#out + 1] = code
  out[#out + 1] = name
end

-- lane_of takes a reference apart: the lane's name, and the ID.
local function lane_of(ref)
  local cut = string.find(ref, '\0', 1, true)
  if not cut then return nil end
  return cut == 1 and ref or string.sub(ref, 1, cut - 1), string.sub(ref, cut + 1)
end

local function placed(ref)
  local lane, id = lane_of(ref)
  return (lane and redis.call('ZSCORE', prefix .. 'lane:' .. lane, id))
    or redis.call('ZSCORE', KEYS[2], ref) or redis.call('ZSCORE', KEYS[3], ref)
end

local function stored(ref) return redis.call('EXISTS', prefix .. 'write:' .. ref) == 1 end

local judge = {}

function judge.lock(lane)
  if redis.call('PTTL', prefix .. 'lock:' .. lane) == -1 then report(1, lane) end
end

function judge.lane(lane)
  local key = prefix .. 'lane:' .. lane
  local depth = redis.call('ZCARD', key)
  if depth > 0 and not redis.call('ZSCORE', KEYS[1], lane) then report(2, lane) end
  if depth > most then return report(5, lane) end
  for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local ref = string.byte(lane) == 0 and lane or lane .. '\0' .. id
    if not stored(ref) then report(4, ref) end
  end
end

function judge.write(ref)
  if stored(ref) and not placed(ref) then report(3, ref) end
end

function judge.place(ref)
  if not stored(ref) and placed(ref) then report(4, ref) end
end

for i = 3, #ARGV, 2 do judge[ARGV[i]](ARGV[i + 1]) end
return out
