-- enter.sql: when a write begins, and under which fence.
-- $1 name  $2 resource  $3 fence, for a process that has none in the database
-- Result: the moment, the fence
SELECT clock_timestamp(),
       coalesce((SELECT fence FROM deferlock_fence WHERE name = $1::text AND resource = $2::text), $3::bigint)
