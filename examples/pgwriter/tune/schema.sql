-- What the transactions write to, beside the tables of pgfence. Nothing here
-- keeps a write from taking effect twice: if it does, the entries show it.
CREATE TABLE accounts (
    account text PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0 -- how many writes have taken effect
) WITH (fillfactor = 50);

-- One row for every time that a write took effect.
CREATE TABLE entries (
    write bigint NOT NULL,
    account text NOT NULL,
    amount bigint NOT NULL,
    transaction bigint NOT NULL DEFAULT txid_current()
);
