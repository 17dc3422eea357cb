-- ready.lua: how an operator's scripts, which do not know the lookback, mend the index. It runs nothing by itself.

-- ready puts the moment from which the lookback of this lane counts into due,
-- unless an earlier one is there, or takes a lane that is empty out of it. A rest
-- is left out of account: whoever looks too early finds the lane resting and
-- writes the true moment, while a rest put down here would be followed by a
-- lookback nobody meant.
local function ready()
  local head = redis.call('ZRANGE', LANE, 0, 0, 'WITHSCORES')[2]
  if not head then
    redis.call('ZREM', DUE, NAME)
  elseif redis.call('HEXISTS', PAUSED, NAME) == 1 then
    redis.call('ZADD', DUE, int(FAR), NAME)
  else
    redis.call('ZADD', DUE, 'LT', int(tonumber(head)), NAME)
    nudge(0)
  end
end
