-- lost: accepted, and without an effect.
SELECT s.write || ' for ' || s.account
FROM submitted s
WHERE s.returned IS NOT NULL AND NOT EXISTS (SELECT FROM entries e WHERE e.write = s.write)
ORDER BY s.returned
