-- applied.sql: tell whether a write took effect, on whatever resource.
-- $1 name  $2 ID
-- Result: true or false
SELECT EXISTS (SELECT FROM deferlock_applied WHERE name = $1::text AND id = $2::text)
