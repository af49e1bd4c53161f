-- Access policies of tenants, and attributes of API keys that rules look at.

CREATE TABLE policies (
    tenant        TEXT PRIMARY KEY NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    -- JSON text.
    document      TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER policies_added AFTER INSERT ON policies BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER policies_changed AFTER UPDATE ON policies BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER policies_removed AFTER DELETE ON policies BEGIN UPDATE config_version SET version = version + 1; END;

-- JSON text: groups, scopes, labels and the time of expiry. A key from before has none.
ALTER TABLE api_keys ADD COLUMN attributes TEXT NOT NULL DEFAULT '{}';
