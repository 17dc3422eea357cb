-- applied_to.sql: tell whether a write took effect on one resource.
-- $1 name  $2 resource  $3 ID
-- Result: true or false
SELECT EXISTS (SELECT FROM deferlock_applied WHERE name = $1::text AND resource = $2::text AND id = $3::text)
