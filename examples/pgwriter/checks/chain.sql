-- chain: a write did not start from the balance that its predecessor left, so
-- an update was lost.
SELECT write || ' on ' || account || ' found ' || before || ' for ' || should_be
FROM (
    SELECT write, account, version, before,
           lag(after, 1, 0::bigint) OVER (PARTITION BY account ORDER BY version) AS should_be
    FROM entries
) AS walk
WHERE before <> should_be
ORDER BY account, version
