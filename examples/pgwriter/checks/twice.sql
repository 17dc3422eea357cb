-- twice: more than one effect.
SELECT write || ', ' || count(*) || ' times'
FROM entries
GROUP BY write
HAVING count(*) > 1
ORDER BY min(entered)
