-- Reads, in one instant, every key that begins with a prefix.
-- KEYS   none: a test's server holds one test's keys, on this node all of them
-- ARGV   1: the prefix
-- reply  one entry per key: {key, type, PTTL, content}, where content is the
--        value of a String, the field/value list of a Hash, the member/score
--        list of a ZSET, and empty for payloads and for other types
local prefix = ARGV[1]
local reply = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.sub(key, 1, #prefix) == prefix then
    local kind = redis.call('TYPE', key)
    kind = kind.ok or kind
    local content = {}
    if kind == 'zset' then
      content = redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES')
    elseif kind == 'hash' then
      content = redis.call('HGETALL', key)
    elseif kind == 'string' and not string.find(key, '}:write:', 1, true) then
      content = {redis.call('GET', key)}
    end
    reply[#reply + 1] = {key, kind, redis.call('PTTL', key), content}
  end
end
return reply
