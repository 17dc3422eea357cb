-- limits.sql: set the time-outs of fence.sql for a write that has no resource, and so no fence.
-- $1 lock_timeout in ms  $2 idle_in_transaction_session_timeout in ms; what is stricter already stays
-- Result: not needed. Both end with the transaction.
SELECT set_config('lock_timeout',
         CASE current_setting('lock_timeout') WHEN '0' THEN $1::bigint
         ELSE least($1::bigint, extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint
         END::text, true),
       set_config('idle_in_transaction_session_timeout',
         CASE current_setting('idle_in_transaction_session_timeout') WHEN '0' THEN $2::bigint
         ELSE least($2::bigint, extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint
         END::text, true)
