-- A node that joined a moment ago claims only released tasks. After an outage of the database, the owners of the other
-- tasks may be alive, and renew their leases a moment later than the new node joins.

CREATE FUNCTION claim_released_tasks(claimant TEXT, most INTEGER, token BIGINT, unanswered BIGINT[], except_for TEXT[])
RETURNS SETOF tasks LANGUAGE plpgsql AS $$
BEGIN
    IF unanswered <> '{}' THEN
        RETURN QUERY SELECT * FROM tasks
            WHERE owner = claimant AND claim = ANY (unanswered) AND status IN ('working', 'input_required');
    END IF;
    RETURN QUERY UPDATE tasks SET owner = claimant, epoch = epoch + 1, claim = token WHERE task IN (
        SELECT task FROM tasks
        WHERE status IN ('working', 'input_required') AND owner IS NULL
            AND task NOT IN (SELECT unnest(except_for)) -- hashed, as in claim_tasks
        ORDER BY created_at_us + 0, task LIMIT most -- the sum: not by way of the index of all tasks ever made
        FOR UPDATE SKIP LOCKED
    ) RETURNING *;
END $$;

-- Sessions of a lapsed owner are removed under the locks that keep it from renewing its lease meanwhile.
CREATE OR REPLACE FUNCTION sweep_sessions(idle_us BIGINT, most INTEGER) RETURNS SETOF BYTEA LANGUAGE plpgsql AS $$
DECLARE
    before BIGINT := now_us() - idle_us;
    chosen BYTEA[];
    owners TEXT[];
BEGIN
    SELECT array_agg(key), array_agg(DISTINCT owner) INTO chosen, owners FROM (
        SELECT key, owner FROM sessions
        WHERE (seen_at_us <= before OR end_asked)
            AND NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = owner AND n.lease_until_us > now_us())
        LIMIT most
    ) AS lapsed;
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    PERFORM hold_lapsed(owners);
    RETURN QUERY DELETE FROM sessions WHERE key IN (
        SELECT key FROM sessions
        WHERE key = ANY (chosen) AND (owner IS NULL OR owner = ANY (owners))
            AND (seen_at_us <= before OR end_asked)
            AND NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = owner AND n.lease_until_us > now_us())
        FOR UPDATE SKIP LOCKED
    ) RETURNING key;
END $$;
