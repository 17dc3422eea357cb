-- present.sql: tell whether the tables are there. It needs no right and takes no lock that anyone waits for.
-- Result: true or false
SELECT to_regclass('deferlock_fence') IS NOT NULL AND to_regclass('deferlock_applied') IS NOT NULL
