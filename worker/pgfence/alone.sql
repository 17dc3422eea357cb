-- alone.sql: wait until no other process sets the tables up. CREATE TABLE IF NOT EXISTS fails when two run it at once.
-- Result: not needed. The lock ends with the transaction. Its number is the first eight letters of the name.
SELECT pg_advisory_xact_lock(7234300962338008931)
