-- Deletes a lock if it is still its holder's.
-- KEYS: lock
-- ARGV: token
-- Reply: 1 if it was deleted, 0 if it was not the holder's
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
