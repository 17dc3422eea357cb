-- effects.sql: what took effect, for the checks.

-- One row for each resource: how many writes it has had. Its row lock, held to
-- the end of the transaction, makes n the order of the commits.
CREATE TABLE heads (resource text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);

-- One row for each effect. Nothing here keeps a write from having two.
CREATE TABLE effects (
  resource text        NOT NULL,
  n        bigint      NOT NULL,
  id       text        NOT NULL,
  payload  text        NOT NULL,
  process  text        NOT NULL,
  fence    bigint      NOT NULL,
  entered  timestamptz NOT NULL,
  exited   timestamptz NOT NULL,
  PRIMARY KEY (resource, n)
);
