-- recorded.sql: with which payload some writes took effect.
-- $1 name  $2 resource  $3 IDs
-- Result: ID, hash of its payload
SELECT id, payload_hash FROM deferlock_applied
 WHERE name = $1::text AND resource = $2::text AND id = ANY ($3::text[])
