-- What operators put into the catalogs of tenants: toolsets, and prompts that the broker hosts.

CREATE TABLE catalog_documents (
    tenant        TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    -- 'toolset' or 'prompt'. A build leaves out kinds that it does not know.
    kind          TEXT COLLATE "C" NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    -- JSON text.
    document      TEXT NOT NULL,
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL,
    PRIMARY KEY (tenant, kind, name)
);

CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON catalog_documents FOR EACH ROW EXECUTE FUNCTION count_config_change();
