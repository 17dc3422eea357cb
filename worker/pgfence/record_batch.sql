-- record_batch.sql: note that some writes take effect with this transaction.
-- $1 name  $2 resource ('' for a write that stands alone)  $3 IDs  $4 hash of the payload of each
-- Result: the IDs that are fresh; those that are missing took effect before
INSERT INTO deferlock_applied (name, id, resource, payload_hash)
SELECT $1::text, w.id, $2::text, w.hash
  FROM unnest($3::text[], $4::bytea[]) AS w (id, hash)
ON CONFLICT (name, id, resource) DO NOTHING
RETURNING id
