-- A result for which the tenant has no capacity evicts nothing. Capacity is determined before anything is deleted, in the turn
-- of this request.

CREATE OR REPLACE FUNCTION put_result(
    new_result TEXT, new_tenant TEXT, new_principal TEXT, new_backend TEXT, new_tool BYTEA, new_mime_type TEXT,
    new_page_bytes BIGINT, new_body BYTEA, life_us BIGINT, principal_max BIGINT, tenant_max BIGINT
) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    at BIGINT;
    size BIGINT := length(new_body);
    evicted TEXT[];
    kept_bytes BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('results of ' || new_tenant, 0));
    IF EXISTS (SELECT FROM results WHERE result = new_result) THEN
        RETURN TRUE;
    END IF;
    at := now_us();
    SELECT array_agg(known.result) FILTER (WHERE known.is_evicted),
           coalesce(sum(known.bytes) FILTER (WHERE NOT known.is_evicted), 0)
    INTO evicted, kept_bytes
    FROM (
        SELECT r.result, length(r.body) AS bytes,
               r.principal = new_principal AND sum(length(r.body)) OVER newest > principal_max - size AS is_evicted
        FROM results AS r WHERE r.tenant = new_tenant AND r.expires_at_us > at
        WINDOW newest AS (PARTITION BY r.principal ORDER BY r.created_at_us DESC, r.result DESC)
    ) AS known;
    IF kept_bytes + size > tenant_max THEN
        RETURN FALSE;
    END IF;
    DELETE FROM results WHERE result = ANY (evicted);
    DELETE FROM results WHERE tenant = new_tenant AND expires_at_us <= at;
    INSERT INTO results (result, tenant, principal, backend, tool, mime_type, page_bytes, body, created_at_us, expires_at_us)
        VALUES (new_result, new_tenant, new_principal, new_backend, new_tool, new_mime_type, new_page_bytes, new_body, now_us(),
            now_us() + life_us);
    RETURN TRUE;
END
$$;
