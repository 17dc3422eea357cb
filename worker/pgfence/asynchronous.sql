-- asynchronous.sql: warn, in the server's log and to the client, that what was reported as done may be lost.
-- Result: none, and a warning
DO $$
BEGIN
  RAISE WARNING 'deferlock: synchronous_commit is off: a crash of the server can lose writes that deferlock was told are done'
  USING HINT = 'Set synchronous_commit to on, local or more for the connections that write.';
END
$$
