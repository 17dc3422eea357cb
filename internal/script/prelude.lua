-- prelude.lua: what every script of ours begins with. It runs nothing by itself.

-- A moment that never comes: the index entry of a lane that must not be looked at.
local FAR = 9007199254740991

-- Numbers become text only through int: tostring loses digits of a microsecond time.
local function int(n) return string.format('%.0f', n) end

-- read_clock returns the time of this key space in microseconds: TIME, but never
-- before the last stamp given. When the server's clock has been set back, ours
-- goes on from where it was (off is how far ahead it is) and returns to TIME at
-- half speed, so that delays still end and nothing is ever stamped twice.
local function read_clock(key)
  local t = redis.call('TIME')
  local time = t[1] * 1000000 + t[2]
  local last, off = 0, 0
  local v = redis.call('GET', key)
  if v then
    local a, b = string.match(v, '^(%d+) ?(%d*)$')
    last, off = tonumber(a) or 0, tonumber(b) or 0
    if last > FAR / 2 or off > FAR / 2 then last, off = 0, 0 end
  end
  local now = time + off
  if now < last then
    off, now = last - time, last
  elseif off > 0 then
    local back = math.min(off, math.floor((now - last) / 2))
    off, now = off - back, now - back
  end
  return { key = key, last = last, off = off, now = now }
end

-- stamp gives the next number: unique, rising, greater than above.
local function stamp(c, above)
  c.last = math.max(c.now, c.last + 1, above + 1)
  local v = int(c.last)
  if c.off > 0 then v = v .. ' ' .. int(c.off) end
  redis.call('SET', c.key, v)
  return c.last
end
