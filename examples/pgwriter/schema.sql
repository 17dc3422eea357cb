-- What the example writes to. Nothing here keeps a write from taking effect
-- twice or in the wrong order: if it does, the entries have to show it.
CREATE TABLE accounts (
    account text PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0 -- how many writes have taken effect
) WITH (fillfactor = 50);

-- One row for every time that a write took effect. The version is the write's
-- place in the order of commits of its account, because the account's row is
-- locked from the update that counts it up until the commit.
CREATE TABLE entries (
    account text NOT NULL,
    version bigint NOT NULL,
    write text NOT NULL,
    amount bigint NOT NULL,
    before bigint NOT NULL, -- the balance that the write read
    after bigint NOT NULL,  -- the balance that it wrote
    fence bigint NOT NULL,
    entered timestamptz NOT NULL, -- when it read the balance, by the database's clock
    finished timestamptz NOT NULL -- when it wrote the balance
);

-- What was submitted, filled in by the process that started the others, from
-- what they told it. Times are nanoseconds of this machine's one clock.
CREATE TABLE submitted (
    write text PRIMARY KEY,
    writer int NOT NULL,
    seq int NOT NULL,
    account text NOT NULL,
    amount bigint NOT NULL,
    called bigint NOT NULL, -- before Do was called, for the first time
    returned bigint         -- after Do had returned nil; null: never
);
