-- effects: how many took effect, how many different writes those were, and in
-- how many transactions.
SELECT count(*)::int, count(DISTINCT write)::int, count(DISTINCT transaction)::int FROM entries
