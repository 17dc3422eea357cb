-- place.lua: where a write is, and how it gets into its lane. It runs nothing by itself.

-- body is the part of an envelope that belongs to the write and not to the call
-- that pushed it: after the version and, if it has metadata, its length (4 bytes)
-- and the metadata.
local function body(e)
  local v, a, b, c, d = string.byte(e, 1, 5)
  if v == 2 then return string.sub(e, 2) end
  if v ~= 1 or not d then return e end
  return string.sub(e, 6 + ((a * 256 + b) * 256 + c) * 256 + d)
end

-- place_of finds a write: its place ('lane', 'later' or 'dead', nil when it is
-- nowhere), and whether what is stored there differs from envelope. Only the
-- places count; a payload alone is what a script that was stopped left behind.
local function place_of(id, ref, write, envelope)
  local stored = redis.call('GET', write)
  if not stored then return nil end
  local place
  if redis.call('ZSCORE', LANE, id) then
    place = 'lane'
  elseif redis.call('ZSCORE', LATER, ref) then
    place = 'later'
  elseif redis.call('ZSCORE', DEAD, ref) then
    place = 'dead'
  end
  return place, body(stored) ~= body(envelope)
end

-- indexed mends the index: a lane with writes in it, the oldest at the stamp
-- given, must be there. An entry that is there is left alone: it is never later
-- than the lane needs, and it may be a reservation.
local function indexed(oldest)
  if redis.call('ZSCORE', DUE, NAME) then return end
  local moment = redis.call('HEXISTS', PAUSED, NAME) == 1 and FAR or tonumber(oldest)
  redis.call('ZADD', DUE, int(moment), NAME)
end

-- oldest is the stamp of the lane's head, nil when it is empty.
local function oldest() return redis.call('ZRANGE', LANE, 0, 0, 'WITHSCORES')[2] end

-- may_place stops the script if the user may not add to a set. Once the payload is
-- stored that is too late: whoever is refused need not repeat the call, and the
-- payload would stay without a place. It changes nothing.
local function may_place(set) redis.call('ZADD', set, 'XX', 0, '') end

-- enlist stores a write and puts it at the place s of its lane. All that may be
-- refused comes before the payload, for the reason above, and the lane last: a
-- script stopped before it has accepted nothing.
local function enlist(id, write, envelope, s)
  may_place(LANE)
  local head = oldest()
  if head then
    indexed(head)
  else
    local moment = redis.call('HEXISTS', PAUSED, NAME) == 1 and FAR or s
    redis.call('ZADD', DUE, 'LT', int(moment), NAME)
  end
  redis.call('SET', write, envelope)
  redis.call('ZADD', LANE, 'NX', int(s), id)
end
