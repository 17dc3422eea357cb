-- present.sql: tell whether the tables are there, and when a commit is reported as done. It needs no right and takes no
-- lock that anyone waits for.
-- Result: true or false, synchronous_commit of the session
SELECT to_regclass('deferlock_fence') IS NOT NULL AND to_regclass('deferlock_applied') IS NOT NULL,
       current_setting('synchronous_commit')
