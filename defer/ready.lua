-- ready.lua: how an operator's scripts, which do not know the lookback, mend the index. It runs nothing by itself.

-- ready puts the moment from which the lookback of this lane counts into due,
-- unless an earlier one is there, or takes a lane that is empty out of it. A lane
-- whose head was started before is due at once: its lookback is over. If it has
-- to rest, whoever looks too early writes down the true moment; put down here, a
-- rest would be followed by a lookback nobody meant.
local function ready()
  local head = redis.call('ZRANGE', LANE, 0, 0, 'WITHSCORES')
  if not head[1] then
    redis.call('ZREM', DUE, NAME)
  elseif redis.call('HEXISTS', PAUSED, NAME) == 1 then
    redis.call('ZADD', DUE, int(FAR), NAME)
  else
    local started = redis.call('HEXISTS', TRIES, ref_of(head[1])) == 1
    redis.call('ZADD', DUE, 'LT', started and 0 or int(tonumber(head[2])), NAME)
    nudge(0)
  end
end
