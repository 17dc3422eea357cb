-- survey.lua: what some lanes look like. It changes nothing.
-- KEYS: 1 clock  2 tries  3 paused
-- ARGV: 1 what every key of the shard begins with, then lanes
-- Reply: {now, then for every lane {depth, head's ID, head's stamp, head's tries or false, ms its lock lives, reason it is paused or false}}
local out = { int(read_clock(KEYS[1]).now) }
for i = 2, #ARGV do
  local name = ARGV[i]
  local lane = ARGV[1] .. 'lane:' .. name
  local head = redis.call('ZRANGE', lane, 0, 0, 'WITHSCORES')
  local tries = false
  if head[1] then
    local ref = string.byte(name) == 0 and name or name .. '\0' .. head[1]
    tries = redis.call('HGET', KEYS[2], ref)
  end
  out[#out + 1] = {
    redis.call('ZCARD', lane), head[1] or '', head[2] or '0', tries,
    redis.call('PTTL', ARGV[1] .. 'lock:' .. name), redis.call('HGET', KEYS[3], name),
  }
end
return out
