-- fence.sql: refuse a holder that is late, and keep the next one out until the transaction ends; but let a holder
-- that is stopped inside the transaction block its lane no longer than its lock lives.
-- It must come before everything the transaction reads or writes, as a statement of its own. In one
-- statement with the write, by a CTE, both see the rows as they were before the wait for the fence's row,
-- and the update of the holder that was waited for is lost.
-- $1 name  $2 resource  $3 fence  $4 lock_timeout in ms  $5 idle_in_transaction_session_timeout in ms
-- The time-outs are set first, and end with the transaction; what is stricter already stays.
-- Result: one row affected; none: a later holder has written
INSERT INTO deferlock_fence AS f (name, resource, fence)
SELECT $1::text, $2::text, $3::bigint
 WHERE set_config('lock_timeout',
         CASE current_setting('lock_timeout') WHEN '0' THEN $4::bigint
         ELSE least($4::bigint, extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint
         END::text, true) IS NOT NULL
   AND set_config('idle_in_transaction_session_timeout',
         CASE current_setting('idle_in_transaction_session_timeout') WHEN '0' THEN $5::bigint
         ELSE least($5::bigint, extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint
         END::text, true) IS NOT NULL
ON CONFLICT (name, resource) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence
