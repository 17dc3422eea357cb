-- write: the writes of one transaction, all of one account, in one statement
-- whatever their number.
-- $1 the account, $2 the numbers of the writes, $3 their amounts
WITH account AS (
    UPDATE accounts
    SET balance = balance + (SELECT sum(amount) FROM unnest($3::bigint[]) AS amount),
        version = version + cardinality($3::bigint[])
    WHERE account = $1
)
INSERT INTO entries (write, account, amount)
SELECT write, $1, amount FROM unnest($2::bigint[], $3::bigint[]) AS batch (write, amount)
