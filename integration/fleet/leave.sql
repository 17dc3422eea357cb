-- leave.sql: the effect of a write. The row of heads is locked from here to the commit.
-- $1 resource  $2 ID  $3 payload  $4 process  $5 fence  $6 when it began
WITH head AS (
  INSERT INTO heads AS h (resource, n) VALUES ($1::text, 1)
  ON CONFLICT (resource) DO UPDATE SET n = h.n + 1
  RETURNING n
)
INSERT INTO effects (resource, n, id, payload, process, fence, entered, exited)
SELECT $1::text, head.n, $2::text, $3::text, $4::text, $5::bigint, $6::timestamptz, clock_timestamp() FROM head
