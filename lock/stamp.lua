-- stamp.lua: give the holder of a lock its fence; tell everybody else how long the holder's lock lives.
-- KEYS: 1 lock  2 clock
-- ARGV: 1 token  2 the number the fence must be greater than
-- Reply: {1, fence}, or {0, milliseconds the lock still lives; -1 it has no TTL, -2 there is none}
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return { 0, redis.call('PTTL', KEYS[1]) }
end
return { 1, int(stamp(read_clock(KEYS[2]), tonumber(ARGV[2]))) }
