-- Operators of the admin plane, revocations of tokens, and issuers of tokens that belong to one tenant.

CREATE TABLE operators (
    operator      TEXT PRIMARY KEY NOT NULL,
    name          TEXT NOT NULL UNIQUE,
    -- Keyed hash of the token. The token itself is never stored.
    hash          BLOB NOT NULL,
    -- JSON text: role, tenants and backends.
    settings      TEXT NOT NULL,
    created_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER operators_added AFTER INSERT ON operators BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER operators_changed AFTER UPDATE ON operators BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER operators_removed AFTER DELETE ON operators BEGIN UPDATE config_version SET version = version + 1; END;

CREATE TABLE revocations (
    tenant           TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    -- 'principal' or 'jti'.
    kind             TEXT NOT NULL,
    subject          TEXT NOT NULL,
    -- Tokens of a principal that were issued before this time are refused.
    issued_before_us INTEGER NOT NULL,
    created_at_us    INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, subject)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER revocations_added AFTER INSERT ON revocations BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER revocations_changed AFTER UPDATE ON revocations BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER revocations_removed AFTER DELETE ON revocations BEGIN UPDATE config_version SET version = version + 1; END;

CREATE TABLE token_issuers (
    tenant        TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    issuer        TEXT NOT NULL,
    -- Sealed JSON text, because it can hold a client secret.
    settings      BLOB NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, issuer)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER token_issuers_added AFTER INSERT ON token_issuers BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER token_issuers_changed AFTER UPDATE ON token_issuers BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER token_issuers_removed AFTER DELETE ON token_issuers BEGIN UPDATE config_version SET version = version + 1; END;
