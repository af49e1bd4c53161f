-- What must outlive the process besides its configuration: nodes, sessions, tasks and event streams.
-- Times are microseconds since 1970-01-01 UTC, by the clock of the process that holds the file.

-- Grows with every change of what the admin API manages, in the transaction of the change.
CREATE TABLE config_version (
    only_row INTEGER PRIMARY KEY NOT NULL CHECK (only_row = 1),
    version  INTEGER NOT NULL
) STRICT;

INSERT INTO config_version (only_row, version) VALUES (1, 1);

CREATE TRIGGER tenants_added AFTER INSERT ON tenants BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER tenants_changed AFTER UPDATE ON tenants BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER tenants_removed AFTER DELETE ON tenants BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER api_keys_added AFTER INSERT ON api_keys BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER api_keys_removed AFTER DELETE ON api_keys BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER backends_added AFTER INSERT ON backends BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER backends_changed AFTER UPDATE ON backends BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER backends_removed AFTER DELETE ON backends BEGIN UPDATE config_version SET version = version + 1; END;

-- One life of one process each. Emptied when the file is opened: its lock says that nobody of before is alive.
CREATE TABLE nodes (
    node           TEXT PRIMARY KEY NOT NULL,
    address        TEXT,
    draining       INTEGER NOT NULL CHECK (draining IN (0, 1)),
    lease_until_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `number` is the order of creation. `key` is a hash of the session's id; the id itself is never stored. `links` is sealed
-- by the broker. Tenants of the configuration file are in no table, so nothing here refers to one.
CREATE TABLE sessions (
    number        INTEGER PRIMARY KEY NOT NULL,
    key           BLOB NOT NULL UNIQUE CHECK (length(key) = 32),
    tenant        TEXT NOT NULL,
    principal     TEXT NOT NULL,
    endpoint      TEXT,
    api_key       TEXT,
    transport     TEXT NOT NULL,
    version       TEXT NOT NULL,
    owner         TEXT,
    epoch         INTEGER NOT NULL,
    end_asked     INTEGER NOT NULL DEFAULT 0 CHECK (end_asked IN (0, 1)),
    created_at_us INTEGER NOT NULL,
    seen_at_us    INTEGER NOT NULL,
    agreement     BLOB NOT NULL,
    state         BLOB NOT NULL,
    links         BLOB NOT NULL
) STRICT;

CREATE INDEX sessions_by_tenant ON sessions (tenant);
CREATE INDEX sessions_by_owner ON sessions (owner);
CREATE INDEX sessions_by_last_word ON sessions (seen_at_us);
CREATE INDEX sessions_to_end ON sessions (owner) WHERE end_asked = 1;

CREATE TABLE subscriptions (
    session     INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
    exposed_uri TEXT NOT NULL,
    backend     TEXT NOT NULL,
    uri         TEXT NOT NULL,
    PRIMARY KEY (session, exposed_uri)
) STRICT, WITHOUT ROWID;

-- `bytes` is what the task counts for: its request, its details and its outcome. `link` is sealed by the broker.
CREATE TABLE tasks (
    number        INTEGER PRIMARY KEY NOT NULL,
    task          TEXT NOT NULL UNIQUE,
    tenant        TEXT NOT NULL,
    principal     TEXT NOT NULL,
    session       BLOB NOT NULL CHECK (length(session) = 32),
    private       INTEGER NOT NULL CHECK (private IN (0, 1)),
    backend       TEXT NOT NULL,
    idempotency   BLOB,
    owner         TEXT,
    epoch         INTEGER NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('working', 'input_required', 'completed', 'failed', 'cancelled')),
    message       TEXT,
    step          TEXT NOT NULL CHECK (step IN ('queued', 'sent', 'mirrored')),
    backend_task  TEXT,
    link          BLOB,
    revision      INTEGER NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL,
    ttl_us        INTEGER,
    expires_at_us INTEGER,
    bytes         INTEGER NOT NULL,
    details       BLOB NOT NULL,
    request       BLOB NOT NULL,
    outcome       BLOB,
    CHECK ((step = 'mirrored') = (backend_task IS NOT NULL AND link IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX tasks_by_idempotency ON tasks (tenant, principal, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX tasks_by_audience ON tasks (tenant, principal, created_at_us, task);
-- With what operators filter by, so that only the rows of a page are read.
CREATE INDEX tasks_by_creation ON tasks (created_at_us, task, tenant, status);
CREATE INDEX tasks_by_expiry ON tasks (expires_at_us) WHERE expires_at_us IS NOT NULL;
CREATE INDEX tasks_unfinished ON tasks (owner) WHERE status IN ('working', 'input_required');

-- How many tasks a tenant has in each status, and their bytes: what limits are checked against. Kept by triggers, so that
-- no way of making, ending or deleting a task can forget it.
CREATE TABLE task_usage (
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    tasks  INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (tenant, status)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER tasks_added AFTER INSERT ON tasks BEGIN
    INSERT INTO task_usage (tenant, status, tasks, bytes) VALUES (NEW.tenant, NEW.status, 1, NEW.bytes)
    ON CONFLICT (tenant, status) DO UPDATE SET tasks = tasks + 1, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER tasks_moved AFTER UPDATE OF status, bytes ON tasks WHEN OLD.status IS NOT NEW.status OR OLD.bytes IS NOT NEW.bytes BEGIN
    UPDATE task_usage SET tasks = tasks - 1, bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant AND status = OLD.status;
    INSERT INTO task_usage (tenant, status, tasks, bytes) VALUES (NEW.tenant, NEW.status, 1, NEW.bytes)
    ON CONFLICT (tenant, status) DO UPDATE SET tasks = tasks + 1, bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER tasks_removed AFTER DELETE ON tasks BEGIN
    UPDATE task_usage SET tasks = tasks - 1, bytes = bytes - OLD.bytes WHERE tenant = OLD.tenant AND status = OLD.status;
END;

-- A task's history; only ever added to.
CREATE TABLE task_transitions (
    task     INTEGER NOT NULL REFERENCES tasks (number) ON DELETE CASCADE,
    revision INTEGER NOT NULL,
    status   TEXT NOT NULL,
    at_us    INTEGER NOT NULL,
    epoch    INTEGER,
    PRIMARY KEY (task, revision)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER task_transitions_stay BEFORE UPDATE ON task_transitions BEGIN
    SELECT RAISE(ABORT, 'the history of a task is not rewritten');
END;

-- Closed ones stay, without what was in them: a number is never used again.
CREATE TABLE task_inputs (
    task    INTEGER NOT NULL REFERENCES tasks (number) ON DELETE CASCADE,
    number  INTEGER NOT NULL,
    closed  INTEGER NOT NULL DEFAULT 0 CHECK (closed IN (0, 1)),
    request BLOB NOT NULL,
    answer  BLOB,
    PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;

-- The event log. Streams refer to no session: what is written behind may come when its session is gone.
CREATE TABLE streams (
    id              INTEGER PRIMARY KEY NOT NULL,
    session         BLOB NOT NULL,
    number          INTEGER NOT NULL,
    general         INTEGER NOT NULL CHECK (general IN (0, 1)),
    due             BLOB NOT NULL,
    was_read        INTEGER NOT NULL CHECK (was_read IN (0, 1)),
    trimmed_through INTEGER NOT NULL DEFAULT 0,
    last_sequence   INTEGER NOT NULL DEFAULT 0,
    touched_at_us   INTEGER NOT NULL,
    UNIQUE (session, number)
) STRICT;

CREATE INDEX streams_by_last_entry ON streams (touched_at_us);

CREATE TABLE stream_events (
    number   INTEGER PRIMARY KEY NOT NULL,
    stream   INTEGER NOT NULL REFERENCES streams (id) ON DELETE CASCADE,
    sequence INTEGER NOT NULL,
    kind     INTEGER NOT NULL,
    frame    BLOB NOT NULL,
    UNIQUE (stream, sequence)
) STRICT;

CREATE TRIGGER sessions_removed AFTER DELETE ON sessions BEGIN
    DELETE FROM streams WHERE session = OLD.key;
END;
