-- balance: an account does not hold the sum of what it was to be given. A write
-- whose outcome nobody learned counts if it took effect.
SELECT a.account || ' holds ' || a.balance || ' for ' || coalesce(sum(s.amount), 0)
FROM accounts a
LEFT JOIN submitted s ON s.account = a.account
    AND (s.returned IS NOT NULL OR EXISTS (SELECT FROM entries e WHERE e.write = s.write))
GROUP BY a.account
HAVING a.balance <> coalesce(sum(s.amount), 0)
ORDER BY a.account
