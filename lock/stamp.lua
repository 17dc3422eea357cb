-- stamp.lua: give the holder of a lock its fence; tell everybody else how long the holder's lock lives.
-- KEYS: 1 lock  2 clock
-- ARGV: 1 token  2 the number the fence must be greater than, 0: any
-- Reply: {1, fence}, or {0, milliseconds the lock still lives; -1 it has no TTL, -2 there is none}
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return { 0, redis.call('PTTL', KEYS[1]) }
end
-- A number that this clock has passed is none that it has lost. It was given while
-- the lock was held here, so by another Redis, which took over when this one was cut
-- off: a holder who got a new fence here now would write after its successors.
local c, above = read_clock(KEYS[2]), tonumber(ARGV[2])
if above > 0 and c.now >= above then
  return { 0, redis.call('PTTL', KEYS[1]) }
end
return { 1, int(stamp(c, above)) }
