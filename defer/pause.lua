-- pause.lua: let nothing of a lane start until it is resumed, or resume it.
-- KEYS: as lane.lua
-- ARGV: as lane.lua, 3 'pause' or 'resume'  4 reason
-- Reply: 1 it is so now, 0 it was so before
local changed
if ARGV[3] == 'pause' then
  changed = redis.call('HSET', PAUSED, NAME, ARGV[4])
else
  changed = redis.call('HDEL', PAUSED, NAME)
end
ready()
return changed
