-- grant.lua: the common case of admit.lua, before anything is set up for the others: nobody is in the way.
-- No lock, no lane, no lane of the shard paused, and the write is not known.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[4], KEYS[5]) == 0 then
  local fence = stamp(read_clock(KEYS[3]), 0)
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  return { 1, int(fence) }
end
