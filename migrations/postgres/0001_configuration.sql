-- What the admin API manages: tenants, their API keys and their backends.
-- Times are microseconds since 1970-01-01 UTC. Names sort by their bytes, whatever the database's language.

CREATE TABLE tenants (
    tenant        TEXT COLLATE "C" PRIMARY KEY,
    settings      TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL
);

-- `hash` is a keyed hash of the whole key; the key itself is never stored.
CREATE TABLE api_keys (
    key_id        TEXT COLLATE "C" PRIMARY KEY,
    tenant        TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    principal     TEXT COLLATE "C" NOT NULL,
    name          TEXT NOT NULL,
    hash          BYTEA NOT NULL CHECK (length(hash) = 32),
    created_at_us BIGINT NOT NULL
);

CREATE INDEX api_keys_by_tenant ON api_keys (tenant);

-- `settings` is sealed by the broker: it holds the credentials shown to the backend.
CREATE TABLE backends (
    tenant        TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    backend       TEXT COLLATE "C" NOT NULL,
    settings      BYTEA NOT NULL,
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL,
    PRIMARY KEY (tenant, backend)
);

-- One row, counting changes of the tables above. Replicas compare it with the one they loaded.
CREATE TABLE config_version (
    only_row BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    version  BIGINT NOT NULL
);

INSERT INTO config_version (version) VALUES (1);

CREATE FUNCTION count_config_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE config_version SET version = version + 1;
    RETURN NULL;
END $$;

CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION count_config_change();
CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON api_keys FOR EACH ROW EXECUTE FUNCTION count_config_change();
CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON backends FOR EACH ROW EXECUTE FUNCTION count_config_change();
