-- Operators of the admin plane, revocations of tokens, and issuers of tokens that belong to one tenant.

CREATE TABLE operators (
    operator      TEXT COLLATE "C" PRIMARY KEY,
    name          TEXT COLLATE "C" NOT NULL UNIQUE,
    -- Keyed hash of the token. The token itself is never stored.
    hash          BYTEA NOT NULL,
    -- JSON text: role, tenants and backends.
    settings      TEXT NOT NULL,
    created_at_us BIGINT NOT NULL
);

CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON operators FOR EACH ROW EXECUTE FUNCTION count_config_change();

CREATE TABLE revocations (
    tenant           TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    -- 'principal' or 'jti'.
    kind             TEXT COLLATE "C" NOT NULL,
    subject          TEXT COLLATE "C" NOT NULL,
    -- Tokens of a principal that were issued before this time are refused.
    issued_before_us BIGINT NOT NULL,
    created_at_us    BIGINT NOT NULL,
    PRIMARY KEY (tenant, kind, subject)
);

CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON revocations FOR EACH ROW EXECUTE FUNCTION count_config_change();

CREATE TABLE token_issuers (
    tenant        TEXT COLLATE "C" NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
    issuer        TEXT COLLATE "C" NOT NULL,
    -- Sealed JSON text, because it can hold a client secret.
    settings      BYTEA NOT NULL,
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL,
    PRIMARY KEY (tenant, issuer)
);

CREATE TRIGGER counts_changes AFTER INSERT OR UPDATE OR DELETE ON token_issuers FOR EACH ROW EXECUTE FUNCTION count_config_change();
