-- Access policies of tenants, and attributes of API keys that rules look at.

CREATE TABLE policies (
    tenant        TEXT COLLATE "C" PRIMARY KEY REFERENCES tenants (tenant) ON DELETE CASCADE,
    -- JSON text.
    document      TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL
);

CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON policies FOR EACH ROW EXECUTE FUNCTION count_config_change();

-- JSON text: groups, scopes, labels and the time of expiry. A key from before has none.
ALTER TABLE api_keys ADD COLUMN attributes TEXT NOT NULL DEFAULT '{}';
