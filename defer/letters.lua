-- letters.lua: what some dead letters are. It changes nothing.
-- KEYS: 1 dead  2 graves  3 clock
-- ARGV: 1 what every key of the shard begins with  2 most bytes of payloads, then references
-- Reply: {now, then for every reference {score, grave, envelope}, each false if it is not there},
--        only as far as the bytes go, but with the first at least
local out, size = { int(read_clock(KEYS[3]).now) }, 0
for i = 3, #ARGV do
  local ref = ARGV[i]
  local envelope = redis.call('GET', ARGV[1] .. 'write:' .. ref)
  size = size + (envelope and #envelope or 0)
  if size > tonumber(ARGV[2]) and out[2] then break end
  out[#out + 1] = { redis.call('ZSCORE', KEYS[1], ref), redis.call('HGET', KEYS[2], ref), envelope }
end
return out
