-- Grants of principals at backends, and secrets of the broker as an OAuth client.

CREATE TABLE upstream_grants (
    tenant         TEXT COLLATE "C" NOT NULL,
    backend        TEXT COLLATE "C" NOT NULL,
    principal      TEXT COLLATE "C" NOT NULL,
    issuer         TEXT NOT NULL,
    -- Sealed: tokens, scopes, resource and client.
    sealed         BYTEA NOT NULL,
    -- 'connected' or 'reconnect'.
    state          TEXT NOT NULL,
    -- End of the access token, if it is known.
    expires_at_us  BIGINT,
    -- Grows with every write of the row, except that of a lease.
    version        BIGINT NOT NULL,
    -- Until then one process uses the refresh token.
    lease_until_us BIGINT NOT NULL DEFAULT 0,
    created_at_us  BIGINT NOT NULL,
    PRIMARY KEY (tenant, backend, principal)
);

CREATE TABLE upstream_secrets (
    -- 'login', 'link' or 'client'.
    kind          TEXT COLLATE "C" NOT NULL,
    tenant        TEXT COLLATE "C" NOT NULL,
    name          TEXT COLLATE "C" NOT NULL,
    sealed        BYTEA NOT NULL,
    expires_at_us BIGINT NOT NULL,
    PRIMARY KEY (kind, tenant, name)
);

CREATE FUNCTION end_upstream_of_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM upstream_grants WHERE tenant = OLD.tenant AND backend = OLD.backend;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_upstream AFTER DELETE ON backends FOR EACH ROW EXECUTE FUNCTION end_upstream_of_backend();

CREATE FUNCTION end_upstream_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM upstream_grants WHERE tenant = OLD.tenant;
    DELETE FROM upstream_secrets WHERE tenant = OLD.tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_upstream AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION end_upstream_of_tenant();
