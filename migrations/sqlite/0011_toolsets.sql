-- What operators put into the catalogs of tenants: toolsets, and prompts that the broker hosts.

CREATE TABLE catalog_documents (
    tenant        TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    -- 'toolset' or 'prompt'. A build leaves out kinds that it does not know.
    kind          TEXT NOT NULL,
    name          TEXT NOT NULL,
    -- JSON text.
    document      TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, name)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER catalog_documents_added AFTER INSERT ON catalog_documents BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER catalog_documents_changed AFTER UPDATE ON catalog_documents BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER catalog_documents_removed AFTER DELETE ON catalog_documents BEGIN UPDATE config_version SET version = version + 1; END;
