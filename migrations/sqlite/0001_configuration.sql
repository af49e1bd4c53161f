-- What the admin API manages: tenants, their API keys and their backends.
-- Times are microseconds since 1970-01-01 UTC.

CREATE TABLE tenants (
    tenant        TEXT PRIMARY KEY NOT NULL,
    settings      TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `hash` is a keyed hash of the whole key; the key itself is never stored.
CREATE TABLE api_keys (
    key_id        TEXT PRIMARY KEY NOT NULL,
    tenant        TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    principal     TEXT NOT NULL,
    name          TEXT NOT NULL,
    hash          BLOB NOT NULL CHECK (length(hash) = 32),
    created_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX api_keys_by_tenant ON api_keys (tenant);

-- `settings` is sealed by the broker: it holds the credentials shown to the backend.
CREATE TABLE backends (
    tenant        TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    backend       TEXT NOT NULL,
    settings      BLOB NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, backend)
) STRICT, WITHOUT ROWID;
