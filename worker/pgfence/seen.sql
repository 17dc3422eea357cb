-- seen.sql: the fence of the last holder that wrote.
-- $1 name  $2 resource
-- Result: fence
SELECT fence FROM deferlock_fence WHERE name = $1::text AND resource = $2::text
