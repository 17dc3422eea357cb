-- What the example writes to. Nothing here keeps a task from taking effect
-- twice: if it does, the entries have to show it.
CREATE TABLE accounts (
    account text PRIMARY KEY,
    balance bigint NOT NULL DEFAULT 0
);

CREATE TABLE entries (
    task text NOT NULL,
    account text NOT NULL,
    amount bigint NOT NULL,
    attempt int NOT NULL,
    before bigint NOT NULL, -- the balance that the write read
    after bigint NOT NULL,  -- the balance that it wrote
    place bigint GENERATED ALWAYS AS IDENTITY -- the order on an account, whose row is locked by then
);

CREATE TABLE tasks (
    task text PRIMARY KEY,
    account text NOT NULL,
    amount bigint NOT NULL
);
