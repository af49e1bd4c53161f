-- Grants of principals at backends, and secrets of the broker as an OAuth client.

CREATE TABLE upstream_grants (
    tenant         TEXT NOT NULL,
    backend        TEXT NOT NULL,
    principal      TEXT NOT NULL,
    issuer         TEXT NOT NULL,
    -- Sealed: tokens, scopes, resource and client.
    sealed         BLOB NOT NULL,
    -- 'connected' or 'reconnect'.
    state          TEXT NOT NULL,
    -- End of the access token, if it is known.
    expires_at_us  INTEGER,
    -- Grows with every write of the row, except that of a lease.
    version        INTEGER NOT NULL,
    -- Until then one process uses the refresh token.
    lease_until_us INTEGER NOT NULL DEFAULT 0,
    created_at_us  INTEGER NOT NULL,
    PRIMARY KEY (tenant, backend, principal)
) STRICT, WITHOUT ROWID;

CREATE TABLE upstream_secrets (
    -- 'login', 'link' or 'client'.
    kind          TEXT NOT NULL,
    tenant        TEXT NOT NULL,
    name          TEXT NOT NULL,
    sealed        BLOB NOT NULL,
    expires_at_us INTEGER NOT NULL,
    PRIMARY KEY (kind, tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER upstream_grants_of_backends AFTER DELETE ON backends BEGIN
    DELETE FROM upstream_grants WHERE tenant = OLD.tenant AND backend = OLD.backend;
END;
CREATE TRIGGER upstream_of_tenants AFTER DELETE ON tenants BEGIN
    DELETE FROM upstream_grants WHERE tenant = OLD.tenant;
    DELETE FROM upstream_secrets WHERE tenant = OLD.tenant;
END;
