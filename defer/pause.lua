-- pause.lua: let nothing of a lane start until it is resumed, or resume it.
-- KEYS: as lane.lua
-- ARGV: as lane.lua, 3 'pause' or 'resume'  4 reason
-- Reply: 1 it is so now, 0 it was so before
local changed
if ARGV[3] == 'pause' then
  changed = redis.call('HSET', PAUSED, NAME, ARGV[4])
else
  changed = redis.call('HDEL', PAUSED, NAME)
  -- A write that halted its lane has used its attempts up. Were they still
  -- counted, it would halt it again without having been run.
  local head = redis.call('ZRANGE', LANE, 0, 0, 'WITHSCORES')
  if head[1] then
    local ref = ref_of(head[1])
    local n, rest, first, token, cause = read_tries(redis.call('HGET', TRIES, ref), tonumber(head[2]))
    if n > 0 and token == '!' then write_tries(ref, 0, rest, first, '-', cause) end
  end
end
ready()
return changed
