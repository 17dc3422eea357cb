-- overlap: a write began before its predecessor on the account had ended.
SELECT write || ' on ' || account || ', by ' || last_end - entered
FROM (
    SELECT write, account, version, entered,
           max(finished) OVER (
               PARTITION BY account ORDER BY version
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS last_end
    FROM entries
) AS walk
WHERE entered < last_end
ORDER BY account, version
