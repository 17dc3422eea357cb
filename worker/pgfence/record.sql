-- record.sql: note that a write takes effect with this transaction.
-- $1 name  $2 resource ('' for a write that stands alone)  $3 ID  $4 hash of the payload
-- Result: one row affected; none: it took effect before
INSERT INTO deferlock_applied (name, id, resource, payload_hash)
VALUES ($1::text, $3::text, $2::text, $4::bytea)
ON CONFLICT (name, id, resource) DO NOTHING
