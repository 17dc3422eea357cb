-- prune.sql: forget the oldest of the writes that took effect long ago. What another pruning has in hand is passed over.
-- $1 how long ago, in seconds  $2 the moment to begin at, NULL for the beginning  $3 how many at most
-- Result: how many are gone, and the newest moment among them, where the next call begins: it need not
-- look again at the rows that were deleted and are not vacuumed yet
WITH old AS (
  SELECT ctid FROM deferlock_applied
   WHERE applied_at >= coalesce($2::timestamptz, '-infinity')
     AND applied_at < now() - make_interval(secs => $1::double precision)
   ORDER BY applied_at
   LIMIT $3::bigint
     FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM deferlock_applied AS a USING old WHERE a.ctid = old.ctid RETURNING a.applied_at
)
SELECT count(*), max(applied_at) FROM gone
