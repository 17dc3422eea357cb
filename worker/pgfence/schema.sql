-- schema.sql: the tables of pgfence. It may be run again.
-- The names stand without a schema: they are looked for, and made, where the search_path says.

-- One row for each resource ever written to: the fence of the last holder that wrote.
-- Half of each page is left free, so that the updates, which touch no index, stay on it (HOT).
CREATE TABLE IF NOT EXISTS deferlock_fence (
  name     text COLLATE "C" NOT NULL,
  resource text COLLATE "C" NOT NULL,
  fence    bigint           NOT NULL,
  PRIMARY KEY (name, resource)
) WITH (fillfactor = 50);

-- One row for each write that took effect, until it is pruned. A write without a resource has ''.
-- The ID stands before the resource, so that one index serves both questions: on this resource, on any.
CREATE TABLE IF NOT EXISTS deferlock_applied (
  name         text COLLATE "C" NOT NULL,
  id           text COLLATE "C" NOT NULL,
  resource     text COLLATE "C" NOT NULL,
  payload_hash bytea            NOT NULL,
  applied_at   timestamptz      NOT NULL DEFAULT now(),
  PRIMARY KEY (name, id, resource)
);

CREATE INDEX IF NOT EXISTS deferlock_applied_at ON deferlock_applied (applied_at);
