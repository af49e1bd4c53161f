-- Calls that wait for the approval of a person.

CREATE TABLE approvals (
    approval        TEXT COLLATE "C" PRIMARY KEY,
    tenant          TEXT COLLATE "C" NOT NULL,
    principal       TEXT COLLATE "C" NOT NULL,
    backend         TEXT COLLATE "C" NOT NULL,
    -- Bytes, because the name of a tool may contain NUL.
    tool            BYTEA NOT NULL,
    -- Digests of the tool's definition, and of the arguments in their canonical form.
    definition      BYTEA NOT NULL,
    arguments_hash  BYTEA NOT NULL,
    arguments       BYTEA NOT NULL,
    -- Digest of all that the approval is bound to, and the same without the arguments.
    binding         BYTEA NOT NULL,
    window_key      BYTEA NOT NULL,
    -- JSON text: the rule, and who may decide.
    terms           TEXT NOT NULL,
    ttl_us          BIGINT NOT NULL,
    -- 'pending', 'approved', 'denied', 'expired' or 'used'.
    state           TEXT COLLATE "C" NOT NULL,
    decided_by      TEXT,
    decision_reason TEXT,
    decided_at_us   BIGINT,
    -- Until then, calls of the tool by the principal need no other approval.
    window_until_us BIGINT,
    -- The call that used the approval.
    used_by         TEXT,
    created_at_us   BIGINT NOT NULL,
    expires_at_us   BIGINT NOT NULL,
    changed_at_us   BIGINT NOT NULL
);

-- A call has at most one approval that it can wait for or use.
CREATE UNIQUE INDEX approvals_open ON approvals (binding) WHERE state IN ('pending', 'approved');
CREATE INDEX approvals_windows ON approvals (window_key, window_until_us) WHERE window_until_us IS NOT NULL;
CREATE INDEX approvals_pending ON approvals (tenant, principal, expires_at_us) WHERE state = 'pending';
CREATE INDEX approvals_by_time ON approvals (tenant, created_at_us, approval);
CREATE INDEX approvals_by_state ON approvals (state, changed_at_us);

-- Opens an approval, or finds the one of an equal call. Returns 'open' or 'window' with the approval, or the limit that
-- is reached: 'principal' or 'tenant'. Requests of one tenant are in turns, so the limits are exact.
CREATE FUNCTION open_approval(
    new_approval TEXT, new_tenant TEXT, new_principal TEXT, new_backend TEXT, new_tool BYTEA, new_definition BYTEA,
    new_arguments_hash BYTEA, new_arguments BYTEA, new_binding BYTEA, new_window_key BYTEA, new_terms TEXT, new_ttl_us BIGINT,
    principal_max BIGINT, tenant_max BIGINT
) RETURNS TABLE (outcome TEXT, opened TEXT) LANGUAGE plpgsql AS $$
DECLARE
    found_approval TEXT;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('approvals of ' || new_tenant, 0));
    SELECT approval INTO found_approval FROM approvals
        WHERE window_key = new_window_key AND window_until_us > now_us() ORDER BY window_until_us DESC LIMIT 1;
    IF FOUND THEN
        RETURN QUERY SELECT 'window'::text, found_approval;
        RETURN;
    END IF;
    UPDATE approvals SET state = 'expired', arguments = '', changed_at_us = now_us()
        WHERE binding = new_binding AND state IN ('pending', 'approved') AND expires_at_us <= now_us();
    SELECT approval INTO found_approval FROM approvals WHERE binding = new_binding AND state IN ('pending', 'approved');
    IF FOUND THEN
        RETURN QUERY SELECT 'open'::text, found_approval;
        RETURN;
    END IF;
    IF (SELECT count(*) FROM approvals WHERE tenant = new_tenant AND principal = new_principal AND state = 'pending'
            AND expires_at_us > now_us()) >= principal_max THEN
        RETURN QUERY SELECT 'principal'::text, NULL::text;
        RETURN;
    END IF;
    IF (SELECT count(*) FROM approvals WHERE tenant = new_tenant AND state = 'pending' AND expires_at_us > now_us()) >= tenant_max THEN
        RETURN QUERY SELECT 'tenant'::text, NULL::text;
        RETURN;
    END IF;
    INSERT INTO approvals (approval, tenant, principal, backend, tool, definition, arguments_hash, arguments, binding, window_key,
            terms, ttl_us, state, created_at_us, expires_at_us, changed_at_us)
        VALUES (new_approval, new_tenant, new_principal, new_backend, new_tool, new_definition, new_arguments_hash, new_arguments,
            new_binding, new_window_key, new_terms, new_ttl_us, 'pending', now_us(), now_us() + new_ttl_us, now_us());
    RETURN QUERY SELECT 'open'::text, new_approval;
END
$$;

CREATE FUNCTION end_approvals_of_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM approvals WHERE tenant = OLD.tenant AND backend = OLD.backend;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_approvals AFTER DELETE ON backends FOR EACH ROW EXECUTE FUNCTION end_approvals_of_backend();

CREATE FUNCTION end_approvals_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM approvals WHERE tenant = OLD.tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_approvals AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION end_approvals_of_tenant();
