-- overtaken: a write took effect before another one that had been accepted
-- before it was even submitted. Each account is walked once, from its last
-- commit to its first, with the earliest acceptance so far in hand.
SELECT write || ' overtook ' || substr(earliest_behind, 21) || ' on ' || account
FROM (
    SELECT e.write, e.account, e.version, s.called,
           min(lpad(s.returned::text, 20, '0') || s.write COLLATE "C") OVER (
               PARTITION BY e.account ORDER BY e.version DESC
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS earliest_behind
    FROM entries e
    JOIN submitted s ON s.write = e.write
) AS walk
WHERE left(earliest_behind, 20)::bigint < called
ORDER BY account, version
