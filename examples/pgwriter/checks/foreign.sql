-- foreign: an effect that nobody asked for, or another one than was asked for.
SELECT e.write || ' on ' || e.account
FROM entries e
LEFT JOIN submitted s ON s.write = e.write AND s.account = e.account AND s.amount = e.amount
WHERE s.write IS NULL
ORDER BY e.entered
