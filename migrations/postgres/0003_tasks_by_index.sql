-- Tasks without an owner are found by a few entries of an index, and tasks are counted without reading them. Whether an
-- owner is alive is judged within the statement that takes something from it, so a node that joined since is not overlooked.
--
-- Functions are replaced, not removed: replicas of the build before may still be running on this database.

-- How many tasks of a tenant ended as what; those that were completed are what is left of `stored`. They are counted before
-- the table is locked, so that replicas that run wait for no longer than adding columns takes. What ends in between, or by
-- a call of the old function that is still under way, is taken for completed.
DO $$
DECLARE
    tenants TEXT[];
    all_failed BIGINT[];
    all_cancelled BIGINT[];
BEGIN
    SELECT array_agg(c.tenant), array_agg(c.failed), array_agg(c.cancelled) INTO tenants, all_failed, all_cancelled
    FROM (SELECT tenant, count(*) FILTER (WHERE status = 'failed') AS failed,
                 count(*) FILTER (WHERE status = 'cancelled') AS cancelled
          FROM tasks GROUP BY tenant) AS c;
    ALTER TABLE task_usage
        ADD COLUMN failed    BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN cancelled BIGINT NOT NULL DEFAULT 0;
    UPDATE task_usage AS u SET failed = c.failed, cancelled = c.cancelled
    FROM unnest(tenants, all_failed, all_cancelled) AS c (tenant, failed, cancelled) WHERE c.tenant = u.tenant;
END $$;

-- By the clock of the moment.
CREATE FUNCTION is_live(owner TEXT) RETURNS BOOLEAN LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM nodes WHERE node = owner AND lease_until_us > now_us())
$$;

-- Before something is taken from these owners: a renewal of a lease that is under way is waited for, and one that comes later
-- waits, and then finds its lease lapsed.
CREATE FUNCTION hold_lapsed(owners TEXT[]) RETURNS VOID LANGUAGE sql VOLATILE AS $$
    SELECT 1 FROM nodes WHERE node = ANY (owners) AND lease_until_us <= now_us() ORDER BY node FOR SHARE
$$;

-- As before, and it counts how tasks ended.
CREATE OR REPLACE FUNCTION write_tasks(
    places BIGINT[], kinds SMALLINT[], ids TEXT[], epochs BIGINT[], numbers BIGINT[], owners TEXT[], tenants TEXT[], principals TEXT[],
    all_sessions BYTEA[], privates BOOLEAN[], backends TEXT[], requests BYTEA[], all_details BYTEA[], idempotencies BYTEA[],
    ttls_us BIGINT[], limits_running BIGINT[], limits_stored BIGINT[], limits_bytes BIGINT[], steps SMALLINT[],
    backend_tasks BYTEA[], all_links BYTEA[], statuses TEXT[], messages BYTEA[], outcomes BYTEA[], again BOOLEAN
) RETURNS TABLE (place BIGINT, outcome SMALLINT, at_us BIGINT, known TEXT) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    w RECORD;
    t RECORD;
    used RECORD;
    at BIGINT := now_us();
    size BIGINT;
    concerned TEXT[];
BEGIN
    -- Tenants whose counts change. Their rows are locked before any task is.
    concerned := ARRAY(
        SELECT u.tenant FROM unnest(kinds, tenants) AS u (kind, tenant) WHERE u.kind = 0
        UNION
        SELECT tasks.tenant FROM unnest(kinds, ids) AS u (kind, id) JOIN tasks ON tasks.task = u.id WHERE u.kind = 2
        ORDER BY 1
    );
    IF 0 = ANY (kinds) THEN
        INSERT INTO task_usage (tenant) SELECT unnest(concerned) ON CONFLICT (tenant) DO NOTHING;
    END IF;
    PERFORM 1 FROM task_usage WHERE tenant = ANY (concerned) ORDER BY tenant FOR UPDATE;

    FOR w IN
        SELECT * FROM unnest(places, kinds, ids, epochs, numbers, owners, tenants, principals, all_sessions, privates, backends,
                             requests, all_details, idempotencies, ttls_us, limits_running, limits_stored, limits_bytes,
                             steps, backend_tasks, all_links, statuses, messages, outcomes)
            AS u (place, kind, task, epoch, number, owner, tenant, principal, session, private, backend,
                  request, details, idempotency, ttl_us, running_max, stored_max, bytes_max,
                  step, backend_task, link, status, message, outcome)
        -- New ones first and as they came: the first of two may take the last free place.
        ORDER BY u.kind <> 0, CASE WHEN u.kind = 0 THEN u.place END, u.task
    LOOP
        place := w.place;
        outcome := NULL;
        at_us := NULL;
        known := NULL;
        SELECT tenant, principal, owner, epoch, revision, status, message, outcome, created_at_us,
               status NOT IN ('working', 'input_required') AS is_over
        INTO t FROM tasks WHERE task = w.task FOR NO KEY UPDATE;
        IF w.kind = 0 THEN -- create
            IF t.epoch IS NOT NULL THEN
                outcome := CASE WHEN (t.tenant, t.principal, t.owner) = (w.tenant, w.principal, w.owner) THEN 1 ELSE 2 END;
                at_us := t.created_at_us;
                RETURN NEXT;
                CONTINUE;
            END IF;
            IF w.idempotency IS NOT NULL THEN
                SELECT task INTO known FROM tasks
                WHERE tenant = w.tenant AND principal = w.principal AND sha256(idempotency) = sha256(w.idempotency);
                IF known IS NOT NULL THEN
                    outcome := 5;
                    RETURN NEXT;
                    CONTINUE;
                END IF;
            END IF;
            SELECT running, stored, bytes INTO used FROM task_usage WHERE tenant = w.tenant;
            size := length(w.request) + length(w.details);
            outcome := CASE
                WHEN used.running >= w.running_max THEN 6
                WHEN used.stored >= w.stored_max THEN 7
                WHEN used.bytes + size > w.bytes_max THEN 8
            END;
            IF outcome IS NULL THEN
                INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, idempotency, ttl_us,
                                   expires_at_us, status, bytes, step, owner, epoch, revision, created_at_us, updated_at_us)
                VALUES (w.task, w.tenant, w.principal, w.session, w.private, w.backend, w.request, w.details, w.idempotency,
                        w.ttl_us, at + w.ttl_us, 'working', size, 0, w.owner, 1, 1, at, at);
                INSERT INTO task_transitions (task, revision, status, at_us, epoch) VALUES (w.task, 1, 'working', at, 1);
                UPDATE task_usage SET running = running + 1, stored = stored + 1, bytes = bytes + size WHERE tenant = w.tenant;
                outcome := 1;
                at_us := at;
            END IF;
            RETURN NEXT;
            CONTINUE;
        END IF;

        -- Who may: an owner under its epoch; anybody where none is given.
        IF t.epoch IS NULL THEN
            outcome := CASE WHEN w.epoch IS NULL THEN 4 ELSE 2 END;
        ELSIF t.epoch <> w.epoch THEN
            outcome := CASE WHEN again AND w.kind = 3 AND t.owner IS NULL AND t.epoch = w.epoch + 1 THEN 0 ELSE 2 END;
        ELSIF t.is_over THEN
            outcome := CASE
                WHEN again AND w.kind = 2 AND t.status = w.status AND t.message IS NOT DISTINCT FROM w.message
                    AND t.outcome IS NOT DISTINCT FROM w.outcome
                    AND EXISTS (SELECT 1 FROM task_transitions AS h
                                WHERE h.task = w.task AND h.revision = t.revision AND h.epoch IS NOT DISTINCT FROM w.epoch)
                THEN 0 ELSE 3 END;
        END IF;
        IF outcome IS NOT NULL THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        outcome := 0;
        CASE w.kind
        WHEN 1 THEN -- step
            UPDATE tasks SET step = w.step, backend_task = w.backend_task, link = w.link WHERE task = w.task;
        WHEN 2 THEN -- end
            size := coalesce(length(w.outcome), 0);
            UPDATE tasks SET status = w.status, message = w.message, outcome = w.outcome, bytes = bytes + size,
                             revision = revision + 1, updated_at_us = at
            WHERE task = w.task;
            INSERT INTO task_transitions (task, revision, status, at_us, epoch)
            VALUES (w.task, t.revision + 1, w.status, at, w.epoch);
            DELETE FROM task_inputs WHERE task = w.task;
            UPDATE task_usage SET running = running - 1, bytes = bytes + size, failed = failed + (w.status = 'failed')::int,
                                  cancelled = cancelled + (w.status = 'cancelled')::int
            WHERE tenant = t.tenant;
        WHEN 3 THEN -- release
            UPDATE tasks SET owner = NULL, epoch = epoch + 1 WHERE task = w.task;
        WHEN 4 THEN -- ask
            INSERT INTO task_inputs (task, number, request) VALUES (w.task, w.number, w.request) ON CONFLICT DO NOTHING;
            IF NOT FOUND AND EXISTS (SELECT 1 FROM task_inputs WHERE task = w.task AND number = w.number AND closed) THEN
                outcome := 3;
            ELSIF t.status <> 'input_required' THEN
                UPDATE tasks SET status = 'input_required', revision = revision + 1, updated_at_us = at WHERE task = w.task;
                INSERT INTO task_transitions (task, revision, status, at_us, epoch)
                VALUES (w.task, t.revision + 1, 'input_required', at, w.epoch);
            END IF;
        WHEN 5 THEN -- answer
            UPDATE task_inputs SET answer = w.outcome
            WHERE task = w.task AND number = w.number AND answer IS NULL AND NOT closed;
            IF NOT FOUND THEN
                outcome := coalesce((SELECT CASE WHEN again AND answer = w.outcome THEN 0 ELSE 3 END
                                     FROM task_inputs WHERE task = w.task AND number = w.number), 4);
            END IF;
        WHEN 6 THEN -- close; what was said is of no more use
            UPDATE task_inputs SET closed = TRUE, request = '', answer = NULL WHERE task = w.task AND number = w.number;
            IF t.status = 'input_required' AND NOT EXISTS (SELECT 1 FROM task_inputs WHERE task = w.task AND NOT closed) THEN
                UPDATE tasks SET status = 'working', revision = revision + 1, updated_at_us = at WHERE task = w.task;
                INSERT INTO task_transitions (task, revision, status, at_us, epoch)
                VALUES (w.task, t.revision + 1, 'working', at, w.epoch);
            END IF;
        END CASE;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION ask_session_end(wanted BYTEA) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    has TEXT;
BEGIN
    SELECT owner INTO has FROM sessions WHERE key = wanted FOR UPDATE;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    PERFORM hold_lapsed(ARRAY[has]);
    UPDATE sessions SET end_asked = TRUE WHERE key = wanted AND is_live(owner);
    IF NOT FOUND THEN
        DELETE FROM sessions WHERE key = wanted;
    END IF;
    RETURN TRUE;
END $$;

CREATE OR REPLACE FUNCTION sweep_sessions(idle_us BIGINT, most INTEGER) RETURNS SETOF BYTEA LANGUAGE plpgsql AS $$
DECLARE
    before BIGINT := now_us() - idle_us;
BEGIN
    RETURN QUERY DELETE FROM sessions WHERE key IN (
        SELECT key FROM sessions
        WHERE (seen_at_us <= before OR end_asked)
            AND NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = owner AND n.lease_until_us > now_us())
        LIMIT most FOR UPDATE SKIP LOCKED
    ) RETURNING key;
END $$;

-- `token` names the call. What the `unanswered` ones took is returned as well.
-- Mostly there is nothing to take, and that is found out from one index entry for each owner.
CREATE FUNCTION claim_tasks(claimant TEXT, most INTEGER, token BIGINT, unanswered BIGINT[], except_for TEXT[])
RETURNS SETOF tasks LANGUAGE plpgsql AS $$
DECLARE
    dead TEXT[];
BEGIN
    IF unanswered <> '{}' THEN
        RETURN QUERY SELECT * FROM tasks
            WHERE owner = claimant AND claim = ANY (unanswered) AND status IN ('working', 'input_required');
    END IF;
    WITH RECURSIVE owners (name) AS (
        (SELECT owner FROM tasks WHERE status IN ('working', 'input_required') AND owner IS NOT NULL ORDER BY owner LIMIT 1)
        UNION ALL
        SELECT (SELECT owner FROM tasks WHERE status IN ('working', 'input_required') AND owner > name ORDER BY owner LIMIT 1)
        FROM owners WHERE name IS NOT NULL
    )
    SELECT array_agg(name) INTO dead FROM owners
    WHERE name <> claimant -- what is its own runs there, lease or not
        AND NOT EXISTS (SELECT 1 FROM nodes WHERE node = name AND lease_until_us > now_us());
    IF dead IS NULL AND NOT EXISTS (SELECT 1 FROM tasks WHERE status IN ('working', 'input_required') AND owner IS NULL) THEN
        RETURN;
    END IF;
    PERFORM hold_lapsed(dead);
    RETURN QUERY UPDATE tasks SET owner = claimant, epoch = epoch + 1, claim = token WHERE task IN (
        SELECT task FROM tasks
        WHERE status IN ('working', 'input_required') AND (owner IS NULL OR owner = ANY (dead))
            AND NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node = owner AND n.lease_until_us > now_us())
            AND task NOT IN (SELECT unnest(except_for)) -- hashed, as a comparison with an array is not everywhere
        ORDER BY created_at_us + 0, task LIMIT most -- the sum: not by way of the index of all tasks ever made
        FOR UPDATE SKIP LOCKED
    ) RETURNING *;
END $$;

-- After a lapse of its lease a process takes what is left to a name nobody had before, so all that name has is its own. It is
-- read by a statement of its own, which sees what an earlier call, whose answer was lost, committed while this one waited.
CREATE FUNCTION reclaim_tasks(lapsed TEXT, fresh TEXT) RETURNS TABLE (task TEXT, epoch BIGINT) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE tasks SET owner = fresh, epoch = epoch + 1 WHERE owner = lapsed AND status IN ('working', 'input_required');
    RETURN QUERY SELECT task, epoch FROM tasks WHERE owner = fresh AND status IN ('working', 'input_required');
END $$;

CREATE FUNCTION reclaim_sessions(lapsed TEXT, fresh TEXT, keys BYTEA[]) RETURNS TABLE (key BYTEA, epoch BIGINT) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE sessions SET owner = fresh, epoch = epoch + 1 WHERE owner = lapsed AND key = ANY (keys);
    RETURN QUERY SELECT key, epoch FROM sessions WHERE owner = fresh AND key = ANY (keys);
END $$;

-- For replicas of the build before.
CREATE OR REPLACE FUNCTION claim_tasks(claimant TEXT, most INTEGER, token BIGINT) RETURNS SETOF tasks LANGUAGE sql AS $$
    SELECT * FROM claim_tasks(claimant, most, token, ARRAY[token], '{}')
$$;

CREATE OR REPLACE FUNCTION expire_tasks(most INTEGER) RETURNS SETOF TEXT LANGUAGE plpgsql AS $$
DECLARE
    chosen TEXT[];
    one RECORD;
BEGIN
    chosen := ARRAY(SELECT task FROM tasks WHERE expires_at_us <= now_us() ORDER BY expires_at_us LIMIT most);
    PERFORM 1 FROM task_usage
    WHERE tenant IN (SELECT tenant FROM tasks WHERE task = ANY (chosen)) ORDER BY tenant FOR UPDATE;
    FOR one IN
        WITH gone AS (
            DELETE FROM tasks WHERE task IN (
                SELECT task FROM tasks WHERE task = ANY (chosen) ORDER BY task FOR UPDATE SKIP LOCKED
            ) RETURNING task, tenant, bytes, status
        )
        SELECT tenant, array_agg(task) AS ids, count(*) AS stored,
               count(*) FILTER (WHERE status IN ('working', 'input_required')) AS running,
               count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE status = 'cancelled') AS cancelled, sum(bytes)::bigint AS bytes
        FROM gone GROUP BY tenant
    LOOP
        UPDATE task_usage AS u SET stored = u.stored - one.stored, running = u.running - one.running, bytes = u.bytes - one.bytes,
                                   failed = greatest(u.failed - one.failed, 0), cancelled = greatest(u.cancelled - one.cancelled, 0)
        WHERE u.tenant = one.tenant;
        RETURN QUERY SELECT unnest(one.ids);
    END LOOP;
END $$;
