-- Results of calls that were too long for their clients, until the clients have read the rest.

CREATE TABLE results (
    result        TEXT COLLATE "C" PRIMARY KEY,
    tenant        TEXT COLLATE "C" NOT NULL,
    principal     TEXT COLLATE "C" NOT NULL,
    backend       TEXT COLLATE "C" NOT NULL,
    -- Bytes, because the name of a tool may contain NUL.
    tool          BYTEA NOT NULL,
    mime_type     TEXT NOT NULL,
    page_bytes    BIGINT NOT NULL,
    body          BYTEA NOT NULL,
    created_at_us BIGINT NOT NULL,
    expires_at_us BIGINT NOT NULL
);

CREATE INDEX results_of_principals ON results (tenant, principal, created_at_us, result);
CREATE INDEX results_by_expiry ON results (expires_at_us);

-- Stores a result. The oldest ones of the principal make room. Returns whether the tenant has room. Requests of one
-- tenant are in turns, so the limits are exact. A repeated request finds its own row.
CREATE FUNCTION put_result(
    new_result TEXT, new_tenant TEXT, new_principal TEXT, new_backend TEXT, new_tool BYTEA, new_mime_type TEXT,
    new_page_bytes BIGINT, new_body BYTEA, life_us BIGINT, principal_max BIGINT, tenant_max BIGINT
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('results of ' || new_tenant, 0));
    IF EXISTS (SELECT FROM results WHERE result = new_result) THEN
        RETURN TRUE;
    END IF;
    DELETE FROM results WHERE tenant = new_tenant AND expires_at_us <= now_us();
    DELETE FROM results WHERE result IN (
        SELECT kept.result FROM (
            SELECT known.result, sum(length(known.body)) OVER (ORDER BY known.created_at_us DESC, known.result DESC) AS newest_bytes
            FROM results AS known WHERE known.tenant = new_tenant AND known.principal = new_principal
        ) AS kept WHERE kept.newest_bytes > principal_max - length(new_body));
    IF (SELECT coalesce(sum(length(body)), 0) FROM results WHERE tenant = new_tenant) + length(new_body) > tenant_max THEN
        RETURN FALSE;
    END IF;
    INSERT INTO results (result, tenant, principal, backend, tool, mime_type, page_bytes, body, created_at_us, expires_at_us)
        VALUES (new_result, new_tenant, new_principal, new_backend, new_tool, new_mime_type, new_page_bytes, new_body, now_us(),
            now_us() + life_us);
    RETURN TRUE;
END
$$;

CREATE FUNCTION end_results_of_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM results WHERE tenant = OLD.tenant AND backend = OLD.backend;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_results AFTER DELETE ON backends FOR EACH ROW EXECUTE FUNCTION end_results_of_backend();

CREATE FUNCTION end_results_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM results WHERE tenant = OLD.tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_results AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION end_results_of_tenant();
