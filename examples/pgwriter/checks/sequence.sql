-- sequence: a writer's write to an account took effect behind a later one of
-- the same writer. A writer submits its writes one after the other, so this
-- needs no clock.
SELECT write || ' behind w' || writer || '-' || before_it || ' on ' || account
FROM (
    SELECT e.write, e.account, e.version, s.writer, s.seq,
           max(s.seq) OVER (
               PARTITION BY e.account, s.writer ORDER BY e.version
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS before_it
    FROM entries e
    JOIN submitted s ON s.write = e.write
) AS walk
WHERE before_it > seq
ORDER BY account, version
