-- fence: a fence went back, so a late holder of the lock got through.
SELECT write || ' on ' || account
FROM (
    SELECT write, account, version, fence,
           lag(fence) OVER (PARTITION BY account ORDER BY version) AS previous
    FROM entries
) AS walk
WHERE fence < previous
ORDER BY account, version
