-- leave.lua: say what became of the writes that ran, then start the next ones or give the lock back.
-- KEYS: as lane.lua
-- ARGV: as lane.lua, 3 token  4 lock's life in ms  5 most writes to start (0: give the lock back)  6 most bytes
--       7 lookback in us  8 go on: 'now', 'due' if the lane is due, 'alone' if no other lane is  9 most dead letters
--       10 number of writes that are done, then ID and stamp of each
--       then for every other write its verdict:
--         return ID stamp starts rest-us cause            it did not count; it stays where it is
--         retry  ID stamp starts rest-us cause            it failed; it stays where it is
--         aside  ID stamp starts rest-us cause            it failed; it joins its lane anew after the rest
--         bury   ID stamp starts 0 cause                  it becomes a dead letter
--         halt   ID stamp starts 0 cause                  it stays and its lane is paused
--         enter  ID stamp starts rest-us cause envelope   a direct write that failed; it goes to the lane's head
-- Reply: {1, fence, now, torn IDs, writes as start_batch gives them} the lock is kept
--        {0, 1 if the token held the lock, depth, 1 if the write to enter is in its lane} it is not kept;
--           a token that did not hold it has carried out only done
local token, ttl, most, bytes = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local lookback, go_on, graves = tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])

local mine = redis.call('GET', LOCK) == token
local dones = tonumber(ARGV[10])
local i, entered = 11 + 2 * dones, 0
if mine and ARGV[i] then redis.call('PEXPIRE', LOCK, ttl) end -- needs no memory: see claim.lua
local c = ARGV[i] and read_clock(CLOCK)

-- drop takes out what took effect. A write that is there again under its old ID
-- has another stamp, and stays. Of one that is nowhere a leave that was stopped
-- half way may have left the rest.
local function drop(ids, stamps)
  local gone, payloads, refs = {}, {}, {}
  for k, s in ipairs(redis.call('ZMSCORE', LANE, unpack(ids))) do
    local ref = ref_of(ids[k])
    local there = tonumber(s) == stamps[k]
    if there then gone[#gone + 1] = ids[k] end
    if there or not (s or redis.call('ZSCORE', LATER, ref) or redis.call('ZSCORE', DEAD, ref)) then
      refs[#refs + 1], payloads[#payloads + 1] = ref, payload_of(ref)
    end
  end
  if not refs[1] then return end
  if gone[1] then redis.call('ZREM', LANE, unpack(gone)) end
  redis.call('DEL', unpack(payloads))
  redis.call('HDEL', TRIES, unpack(refs))
end

local function bury(id, ref, n, first, cause)
  redis.call('HSET', GRAVES, ref, int(n) .. ' ' .. int(first) .. ' ' .. cause)
  redis.call('ZADD', DEAD, int(c.now), ref)
  redis.call('ZREM', LANE, id)
  redis.call('HDEL', TRIES, ref)
  while graves > 0 and redis.call('ZCARD', DEAD) > graves do
    local oldest = redis.call('ZRANGE', DEAD, 0, 0)[1]
    redis.call('DEL', payload_of(oldest))
    redis.call('HDEL', GRAVES, oldest)
    redis.call('ZREM', DEAD, oldest)
  end
end

-- handed_over says that the lane's head was started under this token and has no
-- verdict: this leave has been carried out before, and whoever it handed the lane
-- to is at work under the same lock. A copy must neither delete that lock nor get
-- in front of what runs.
local function handed_over()
  local head = redis.call('ZRANGE', LANE, 0, 0)[1]
  if not head then return false end
  local _, _, _, last = read_tries(redis.call('HGET', TRIES, ref_of(head)), 0)
  return last == token
end

-- enter puts a write that ran directly, and failed, before all that came after
-- it, and says whether it is there.
local function enter(id, ref, s, rest, cause, envelope)
  local write = payload_of(ref)
  local place, differs = place_of(id, ref, write, envelope)
  if place then return differs and 0 or 1 end
  if not mine or handed_over() then return 0 end
  local head = tonumber(oldest())
  s = head and math.min(s, head - 1) or s
  write_tries(ref, 1, c.now + rest, s, '-', cause)
  redis.call('SET', write, envelope)
  redis.call('ZADD', DUE, 'LT', int(s), NAME)
  redis.call('ZADD', LANE, 'NX', int(s), id)
  return 1
end

if dones > 0 then
  local ids, stamps = {}, {}
  for k = 1, dones do
    ids[k], stamps[k] = ARGV[9 + 2 * k], tonumber(ARGV[10 + 2 * k])
  end
  drop(ids, stamps)
end

while ARGV[i] do
  local verdict, id, s = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local ref = ref_of(id)
  if verdict == 'enter' then
    entered = enter(id, ref, s, tonumber(ARGV[i + 4]), ARGV[i + 5], ARGV[i + 6])
    i = i + 7
  else
    local starts, rest, cause = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), ARGV[i + 5]
    local at = redis.call('ZSCORE', LANE, id)
    local there = tonumber(at) == s
    local n, _, first, last = read_tries(redis.call('HGET', TRIES, ref), s)
    -- Whoever started it since, or ended this start already, has the say.
    if there and n == starts and last == token then
      if verdict == 'return' then
        write_tries(ref, n - 1, c.now + rest, first, '-', cause)
      elseif mine and verdict == 'retry' then
        write_tries(ref, n, c.now + rest, first, '-', cause)
      elseif mine and verdict == 'aside' then
        write_tries(ref, n, 0, first, '-', cause)
        redis.call('ZADD', LATER, int(c.now + rest), ref)
        redis.call('ZREM', LANE, id)
        nudge(rest)
      elseif mine and verdict == 'bury' then
        bury(id, ref, n, first, cause)
      elseif mine and verdict == 'halt' then
        write_tries(ref, n, 0, first, '!', cause)
        redis.call('HSET', PAUSED, NAME, cause)
      end
    elseif verdict == 'bury' and not at and redis.call('ZSCORE', DEAD, ref) then
      redis.call('HDEL', TRIES, ref) -- a leave that was stopped half way may have left it
    end
    i = i + 6
  end
end

local depth = redis.call('ZCARD', LANE)
if not mine then
  if depth == 0 then
    redis.call('ZREM', DUE, NAME)
  else
    indexed(oldest())
  end
  return { 0, 0, depth, entered }
end
if depth == 0 then
  redis.call('DEL', LOCK)
  if c then stamp(c, 0) end -- see index in lane.lua
  if dones > 0 or c then redis.call('ZREM', DUE, NAME) end
  return { 0, 1, 0, entered }
end

c = c or read_clock(CLOCK)
local ripe = go_on ~= 'due'
if most > 0 then
  local try = true
  if handed_over() then -- the same answer again
  elseif redis.call('HEXISTS', PAUSED, NAME) == 1 then
    try = false
  elseif go_on == 'due' then
    try = tonumber(oldest()) <= c.now - lookback
  elseif go_on == 'alone' then
    local others = redis.call('ZRANGEBYSCORE', DUE, '-inf', int(c.now - lookback), 'LIMIT', 0, 2)
    try = not others[1] or (others[1] == NAME and not others[2])
  end
  if try then
    redis.call('PEXPIRE', LOCK, ttl)
    local got, torn = start_batch(c, token, most, bytes)
    if torn[1] and not got[1] then index(c, lookback, ripe) end
    if got[1] or torn[1] then
      return { 1, int(stamp(c, greatest())), int(c.now), torn, got }
    end
  end
end
redis.call('DEL', LOCK)
index(c, lookback, ripe)
return { 0, 1, depth, entered }
