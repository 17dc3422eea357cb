-- batch.lua: which writes of a lane the holder of its lock may start now. It runs nothing by itself.

-- start_batch marks the oldest writes of the lane as started under token and
-- returns them: ID, stamp, starts, first stamp, last cause, envelope of each.
--   * A write that must rest, or whose neighbour before it must, is not started:
--     the order is kept.
--   * A write that was started before under another token is started alone, so
--     that one that kills its process does not bury its neighbours.
--   * Under the same token the same writes come again, no others, and are not
--     counted twice: this is a repetition, or a late copy that must not start
--     what its holder does not know of.
-- A write without a payload cannot be run any more; it is taken out of the lane
-- and named in the second result.
local function start_batch(c, token, most, bytes)
  local lane = redis.call('ZRANGE', LANE, 0, most - 1, 'WITHSCORES')
  if not lane[1] then return {}, {} end
  local refs = {}
  for i = 1, #lane, 2 do refs[#refs + 1] = ref_of(lane[i]) end
  local tries = redis.call('HMGET', TRIES, unpack(refs))

  local got, torn, size, starts, repeated = {}, {}, 0, {}, false
  for i, ref in ipairs(refs) do
    local id, s = lane[2 * i - 1], lane[2 * i]
    local n, rest, first, last, cause = 0, 0, tonumber(s), '-', ''
    if tries[i] then n, rest, first, last, cause = read_tries(tries[i], first) end
    if i == 1 then repeated = last == token end
    if repeated and last ~= token then break end
    local again = n > 0 and last ~= token
    if rest > c.now or (again and got[1]) then break end
    local envelope = redis.call('GET', payload_of(ref))
    if not envelope then
      redis.call('ZREM', LANE, id)
      redis.call('HDEL', TRIES, ref)
      torn[#torn + 1] = id
    else
      size = size + #envelope
      if size > bytes and got[1] then break end
      first = int(first)
      if last ~= token then
        n = n + 1
        local at = #starts
        starts[at + 1], starts[at + 2] = ref, n .. ' 0 ' .. first .. ' ' .. token .. ' ' .. cause
      end
      local at = #got
      got[at + 1], got[at + 2], got[at + 3], got[at + 4], got[at + 5], got[at + 6] = id, s, n, first, cause, envelope
      if again then break end
    end
  end
  if starts[1] then redis.call('HSET', TRIES, unpack(starts)) end
  return got, torn
end
