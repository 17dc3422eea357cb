-- Takes writes that were pushed long enough ago out of the queue.
-- KEYS: queue
-- ARGV: pushed before (µs), at most so many
-- Reply: their payloads, the oldest first
local keys = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
local payloads = {}
for i, key in ipairs(keys) do
  redis.call('ZREM', KEYS[1], key)
  payloads[i] = redis.call('GET', key)
  redis.call('DEL', key)
end
return payloads
