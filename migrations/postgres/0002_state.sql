-- What replicas share: their leases, sessions, subscriptions, tasks and the log of event streams.
--
-- A batch of writes is one call of a function, so that it costs one round trip however many rows it is about. Locks are
-- taken in one order everywhere (nodes by name; counts of tenants by name; then rows by key), so that batches of two
-- replicas wait for each other and never for ever. Texts of strangers may hold any character, NUL too, which TEXT does
-- not take: they are BYTEA.

CREATE FUNCTION now_us() RETURNS BIGINT LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- One row for each life of a broker process. What it owns is its own for as long as the lease runs.
CREATE TABLE nodes (
    node           TEXT COLLATE "C" PRIMARY KEY,
    address        TEXT,
    draining       BOOLEAN NOT NULL DEFAULT FALSE,
    lease_until_us BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Nodes whose lease runs. The others are locked until the caller is through, so that none of them renews a lease that
-- was just found lapsed: it waits, and then finds it lapsed itself.
CREATE FUNCTION live_nodes() RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    at BIGINT := now_us();
BEGIN
    PERFORM 1 FROM nodes WHERE lease_until_us <= at ORDER BY node FOR SHARE;
    RETURN ARRAY(SELECT node FROM nodes WHERE lease_until_us > at);
END $$;

CREATE TABLE sessions (
    key           BYTEA PRIMARY KEY CHECK (length(key) = 32),
    tenant        TEXT COLLATE "C" NOT NULL,
    principal     TEXT COLLATE "C" NOT NULL,
    endpoint      TEXT COLLATE "C",
    api_key       TEXT,
    transport     TEXT NOT NULL,
    version       TEXT NOT NULL,
    agreement     BYTEA NOT NULL,
    state         BYTEA NOT NULL,
    links         BYTEA NOT NULL,
    owner         TEXT COLLATE "C",
    epoch         BIGINT NOT NULL,
    end_asked     BOOLEAN NOT NULL DEFAULT FALSE,
    created_at_us BIGINT NOT NULL,
    seen_at_us    BIGINT NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX sessions_by_owner ON sessions (owner);
CREATE INDEX sessions_by_creation ON sessions (created_at_us, key);
CREATE INDEX sessions_by_tenant ON sessions (tenant, created_at_us, key);
CREATE INDEX sessions_by_last_word ON sessions (seen_at_us);
CREATE INDEX sessions_to_end ON sessions (owner) WHERE end_asked;

-- Unique by a digest of the URI: an index holds no long ones.
CREATE TABLE subscriptions (
    key         BYTEA NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
    exposed_uri BYTEA NOT NULL,
    backend     TEXT COLLATE "C" NOT NULL,
    uri         BYTEA NOT NULL
);

CREATE UNIQUE INDEX subscriptions_by_session ON subscriptions (key, sha256(exposed_uri));

CREATE TABLE tasks (
    task          TEXT COLLATE "C" PRIMARY KEY,
    tenant        TEXT COLLATE "C" NOT NULL,
    principal     TEXT COLLATE "C" NOT NULL,
    session       BYTEA NOT NULL,
    private       BOOLEAN NOT NULL,
    backend       TEXT COLLATE "C" NOT NULL,
    request       BYTEA NOT NULL,
    details       BYTEA NOT NULL,
    idempotency   BYTEA,
    ttl_us        BIGINT,
    expires_at_us BIGINT,
    status        TEXT COLLATE "C" NOT NULL,
    message       BYTEA,
    outcome       BYTEA,
    bytes         BIGINT NOT NULL,
    step          SMALLINT NOT NULL, -- 0 queued, 1 sent, 2 mirrored
    backend_task  BYTEA,
    link          BYTEA,
    owner         TEXT COLLATE "C",
    epoch         BIGINT NOT NULL,
    revision      BIGINT NOT NULL,
    claim         BIGINT,            -- the call that gave it to its owner, which may have missed the answer
    created_at_us BIGINT NOT NULL,
    updated_at_us BIGINT NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX tasks_by_creation ON tasks (created_at_us, task);
CREATE INDEX tasks_by_principal ON tasks (tenant, principal, created_at_us, task);
CREATE INDEX tasks_unfinished ON tasks (owner) WHERE status IN ('working', 'input_required');
CREATE INDEX tasks_by_expiry ON tasks (expires_at_us) WHERE expires_at_us IS NOT NULL;
CREATE UNIQUE INDEX tasks_by_idempotency ON tasks (tenant, principal, sha256(idempotency)) WHERE idempotency IS NOT NULL;

CREATE TABLE task_transitions (
    task     TEXT COLLATE "C" NOT NULL REFERENCES tasks (task) ON DELETE CASCADE,
    revision BIGINT NOT NULL,
    status   TEXT COLLATE "C" NOT NULL,
    at_us    BIGINT NOT NULL,
    epoch    BIGINT,
    PRIMARY KEY (task, revision)
);

CREATE TABLE task_inputs (
    task    TEXT COLLATE "C" NOT NULL REFERENCES tasks (task) ON DELETE CASCADE,
    number  BIGINT NOT NULL,
    request BYTEA NOT NULL,
    answer  BYTEA,
    closed  BOOLEAN NOT NULL DEFAULT FALSE, -- remembered: a number is never used again
    PRIMARY KEY (task, number)
);

-- What the tasks of a tenant amount to, so that limits are checked without counting.
CREATE TABLE task_usage (
    tenant  TEXT COLLATE "C" PRIMARY KEY,
    running BIGINT NOT NULL DEFAULT 0,
    stored  BIGINT NOT NULL DEFAULT 0,
    bytes   BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 30);

CREATE TABLE event_streams (
    session         BYTEA NOT NULL,
    number          BIGINT NOT NULL,
    general         BOOLEAN NOT NULL,
    due             BYTEA NOT NULL,
    was_read        BOOLEAN NOT NULL,
    trimmed_through BIGINT NOT NULL DEFAULT 0,
    last_sequence   BIGINT NOT NULL DEFAULT 0,
    touched_at_us   BIGINT NOT NULL,
    PRIMARY KEY (session, number)
) WITH (fillfactor = 80);

CREATE INDEX event_streams_by_age ON event_streams (touched_at_us);

CREATE TABLE stream_events (
    session  BYTEA NOT NULL,
    number   BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    kind     SMALLINT NOT NULL,
    frame    BYTEA NOT NULL,
    PRIMARY KEY (session, number, sequence),
    FOREIGN KEY (session, number) REFERENCES event_streams (session, number) ON DELETE CASCADE
);

-- Streams end with their session, however that ends. They are not bound to it the other way round: a stream may be told
-- before its session is.
CREATE FUNCTION forget_streams() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM event_streams WHERE session = OLD.key;
    RETURN NULL;
END $$;

CREATE TRIGGER forgets_streams AFTER DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION forget_streams();

-- Each takes its half of a batch as columns of one length; `places` are of the whole batch. Outcomes: 0 done, 1 created, 2 fenced, 3 over, 4 absent, 5 known, 6 to 8 full (running, stored, bytes).
-- `again`: an earlier attempt may have been carried out, so what is as it would have left it counts as done by us.

CREATE FUNCTION write_sessions(
    places BIGINT[], kinds SMALLINT[], keys BYTEA[], epochs BIGINT[], idles_us BIGINT[], owners TEXT[], tenants TEXT[], principals TEXT[],
    endpoints TEXT[], api_keys TEXT[], transports TEXT[], versions TEXT[], agreements BYTEA[], states BYTEA[], all_links BYTEA[],
    exposed_uris BYTEA[], backends TEXT[], uris BYTEA[], again BOOLEAN
) RETURNS TABLE (place BIGINT, outcome SMALLINT) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    w RECORD;
    at BIGINT := now_us();
    is_done BOOLEAN;
BEGIN
    FOR w IN
        SELECT * FROM unnest(places, kinds, keys, epochs, idles_us, owners, tenants, principals, endpoints, api_keys, transports,
                             versions, agreements, states, all_links, exposed_uris, backends, uris)
            AS u (place, kind, key, epoch, idle_us, owner, tenant, principal, endpoint, api_key, transport,
                  version, agreement, state, links, exposed_uri, backend, uri)
        ORDER BY u.key
    LOOP
        CASE w.kind
        WHEN 0 THEN -- open
            INSERT INTO sessions (key, tenant, principal, endpoint, api_key, transport, version, agreement, state, links,
                                  owner, epoch, created_at_us, seen_at_us)
            VALUES (w.key, w.tenant, w.principal, w.endpoint, w.api_key, w.transport, w.version, w.agreement, w.state, w.links,
                    w.owner, 1, at, at)
            ON CONFLICT (key) DO NOTHING;
            is_done := FOUND OR EXISTS (SELECT 1 FROM sessions WHERE key = w.key AND owner = w.owner AND epoch = 1);
        WHEN 1 THEN -- update
            UPDATE sessions SET state = coalesce(w.state, state), links = coalesce(w.links, links), seen_at_us = at - w.idle_us
            WHERE key = w.key AND epoch = w.epoch;
            is_done := FOUND;
        WHEN 2 THEN -- release
            UPDATE sessions SET state = w.state, links = w.links, seen_at_us = at - w.idle_us, owner = NULL, epoch = epoch + 1
            WHERE key = w.key AND epoch = w.epoch;
            is_done := FOUND
                OR again AND EXISTS (SELECT 1 FROM sessions WHERE key = w.key AND epoch = w.epoch + 1 AND owner IS NULL);
        WHEN 3 THEN -- end
            DELETE FROM sessions WHERE key = w.key AND epoch = w.epoch;
            is_done := FOUND OR again AND NOT EXISTS (SELECT 1 FROM sessions WHERE key = w.key);
        WHEN 4 THEN -- subscribe; the lock makes a claim wait, which then sees the subscription
            PERFORM 1 FROM sessions WHERE key = w.key AND epoch = w.epoch FOR NO KEY UPDATE;
            is_done := FOUND;
            IF is_done THEN
                INSERT INTO subscriptions (key, exposed_uri, backend, uri) VALUES (w.key, w.exposed_uri, w.backend, w.uri)
                ON CONFLICT (key, sha256(exposed_uri)) DO UPDATE SET backend = excluded.backend, uri = excluded.uri;
            END IF;
        WHEN 5 THEN -- unsubscribe
            PERFORM 1 FROM sessions WHERE key = w.key AND epoch = w.epoch FOR NO KEY UPDATE;
            is_done := FOUND;
            IF is_done THEN
                DELETE FROM subscriptions WHERE key = w.key AND sha256(exposed_uri) = sha256(w.exposed_uri);
            END IF;
        END CASE;
        place := w.place;
        outcome := CASE WHEN is_done THEN 0 ELSE 2 END;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE FUNCTION write_tasks(
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
            UPDATE task_usage SET running = running - 1, bytes = bytes + size WHERE tenant = t.tenant;
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

-- No row: there is none for this seat. `epoch` is set when it is taken; else the owner's columns are.
CREATE FUNCTION claim_session(wanted BYTEA, for_tenant TEXT, for_principal TEXT, for_endpoint TEXT, claimant TEXT, idle_us BIGINT)
RETURNS TABLE (
    epoch BIGINT, created_at_us BIGINT, api_key TEXT, transport TEXT, version TEXT, agreement BYTEA, state BYTEA, links BYTEA,
    exposed_uris BYTEA[], backends TEXT[], uris BYTEA[], node TEXT, address TEXT, draining BOOLEAN, lease_left_us BIGINT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s sessions%ROWTYPE;
    n nodes%ROWTYPE;
    at BIGINT;
BEGIN
    -- First without a lock: mostly the owner is alive, and is not to be held up in renewing its lease. Then in earnest.
    FOR attempt IN 1..2 LOOP
        IF attempt = 1 THEN
            SELECT * INTO s FROM sessions WHERE key = wanted;
        ELSE
            SELECT * INTO s FROM sessions WHERE key = wanted FOR UPDATE;
        END IF;
        IF s.key IS NULL OR s.end_asked
            OR (s.tenant, s.principal) <> (for_tenant, for_principal) OR s.endpoint IS DISTINCT FROM for_endpoint THEN
            RETURN;
        END IF;
        IF s.owner <> claimant THEN
            IF attempt = 1 THEN
                SELECT * INTO n FROM nodes WHERE node = s.owner;
            ELSE
                SELECT * INTO n FROM nodes WHERE node = s.owner FOR SHARE;
            END IF;
            at := now_us();
            IF n.lease_until_us > at THEN
                node := n.node;
                address := n.address;
                draining := n.draining;
                lease_left_us := n.lease_until_us - at;
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
    END LOOP;
    at := now_us();
    IF s.seen_at_us <= at - idle_us THEN
        RETURN; -- expired, and about to be swept
    END IF;
    UPDATE sessions SET owner = claimant, epoch = s.epoch + 1, seen_at_us = at WHERE key = wanted;
    SELECT array_agg(sub.exposed_uri), array_agg(sub.backend), array_agg(sub.uri) INTO exposed_uris, backends, uris
    FROM (SELECT * FROM subscriptions WHERE key = wanted ORDER BY exposed_uri) AS sub;
    epoch := s.epoch + 1;
    created_at_us := s.created_at_us;
    api_key := s.api_key;
    transport := s.transport;
    version := s.version;
    agreement := s.agreement;
    state := s.state;
    links := s.links;
    RETURN NEXT;
END $$;

CREATE FUNCTION ask_session_end(wanted BYTEA) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    live TEXT[] := live_nodes();
BEGIN
    UPDATE sessions SET end_asked = TRUE WHERE key = wanted AND owner = ANY (live);
    IF NOT FOUND THEN
        DELETE FROM sessions WHERE key = wanted;
    END IF;
    RETURN FOUND;
END $$;

CREATE FUNCTION sweep_sessions(idle_us BIGINT, most INTEGER) RETURNS SETOF BYTEA LANGUAGE plpgsql AS $$
DECLARE
    live TEXT[] := live_nodes();
    before BIGINT := now_us() - idle_us;
BEGIN
    RETURN QUERY DELETE FROM sessions WHERE key IN (
        SELECT key FROM sessions
        WHERE (owner IS NULL OR owner <> ALL (live)) AND (seen_at_us <= before OR end_asked)
        LIMIT most FOR UPDATE SKIP LOCKED
    ) RETURNING key;
END $$;

-- `token` names the call. What an earlier call under the same name took is returned as well: its answer was lost.
CREATE FUNCTION claim_tasks(claimant TEXT, most INTEGER, token BIGINT) RETURNS SETOF tasks LANGUAGE plpgsql AS $$
DECLARE
    live TEXT[] := live_nodes();
BEGIN
    RETURN QUERY SELECT * FROM tasks
        WHERE owner = claimant AND claim = token AND status IN ('working', 'input_required');
    RETURN QUERY UPDATE tasks SET owner = claimant, epoch = epoch + 1, claim = token WHERE task IN (
        SELECT task FROM tasks
        WHERE status IN ('working', 'input_required')
            AND (owner IS NULL OR owner <> claimant AND owner <> ALL (live)) -- what is its own runs there, lease or not
        ORDER BY created_at_us, task LIMIT most FOR UPDATE SKIP LOCKED
    ) RETURNING *;
END $$;

CREATE FUNCTION expire_tasks(most INTEGER) RETURNS SETOF TEXT LANGUAGE plpgsql AS $$
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
            ) RETURNING task, tenant, bytes, status IN ('working', 'input_required') AS runs
        )
        SELECT tenant, array_agg(task) AS ids, count(*) AS stored, count(*) FILTER (WHERE runs) AS running,
               sum(bytes)::bigint AS bytes
        FROM gone GROUP BY tenant
    LOOP
        UPDATE task_usage AS u SET stored = u.stored - one.stored, running = u.running - one.running, bytes = u.bytes - one.bytes
        WHERE u.tenant = one.tenant;
        RETURN QUERY SELECT unnest(one.ids);
    END LOOP;
END $$;

-- A stored tenant with everything of it. False: there was none.
CREATE FUNCTION delete_tenant(gone TEXT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tenants WHERE tenant = gone;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    DELETE FROM task_usage WHERE tenant = gone;
    DELETE FROM sessions WHERE tenant = gone;
    DELETE FROM tasks WHERE tenant = gone;
    RETURN TRUE;
END $$;

-- The net effect of a run of log entries. Events and trims of streams that are not there have none.
CREATE FUNCTION append_to_log(
    dropped_sessions BYTEA[], dropped_numbers BIGINT[],
    told_sessions BYTEA[], told_numbers BIGINT[], told_general BOOLEAN[], told_due BYTEA[], told_was_read BOOLEAN[],
    touched_sessions BYTEA[], touched_numbers BIGINT[], touched_through BIGINT[], touched_last BIGINT[],
    event_sessions BYTEA[], event_numbers BIGINT[], event_sequences BIGINT[], event_kinds SMALLINT[], event_frames BYTEA[]
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    at BIGINT := now_us();
BEGIN
    DELETE FROM event_streams AS s USING unnest(dropped_sessions, dropped_numbers) AS u (session, number)
    WHERE s.session = u.session AND s.number = u.number;

    INSERT INTO event_streams (session, number, general, due, was_read, touched_at_us)
    SELECT u.session, u.number, u.general, u.due, u.was_read, at
    FROM unnest(told_sessions, told_numbers, told_general, told_due, told_was_read) AS u (session, number, general, due, was_read)
    ORDER BY u.session, u.number
    ON CONFLICT (session, number) DO UPDATE
    SET general = excluded.general, due = excluded.due, was_read = excluded.was_read, touched_at_us = excluded.touched_at_us;

    PERFORM 1 FROM event_streams AS s
    JOIN unnest(touched_sessions, touched_numbers) AS u (session, number) ON s.session = u.session AND s.number = u.number
    ORDER BY s.session, s.number FOR UPDATE OF s;

    INSERT INTO stream_events (session, number, sequence, kind, frame)
    SELECT u.session, u.number, u.sequence, u.kind, u.frame
    FROM unnest(event_sessions, event_numbers, event_sequences, event_kinds, event_frames)
        AS u (session, number, sequence, kind, frame)
    JOIN event_streams AS s ON s.session = u.session AND s.number = u.number
    WHERE u.sequence > s.trimmed_through
    ON CONFLICT DO NOTHING;

    UPDATE event_streams AS s
    SET trimmed_through = greatest(s.trimmed_through, u.through), last_sequence = greatest(s.last_sequence, u.last), touched_at_us = at
    FROM unnest(touched_sessions, touched_numbers, touched_through, touched_last) AS u (session, number, through, last)
    WHERE s.session = u.session AND s.number = u.number;

    DELETE FROM stream_events AS e
    USING unnest(touched_sessions, touched_numbers, touched_through) AS u (session, number, through)
    WHERE e.session = u.session AND e.number = u.number AND e.sequence <= u.through;
END $$;

CREATE FUNCTION expire_events(age_us BIGINT, most INTEGER) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    before BIGINT := now_us() - age_us;
    gone BIGINT;
BEGIN
    WITH old AS (
        SELECT session, number FROM event_streams WHERE touched_at_us <= before
        ORDER BY touched_at_us, session, number LIMIT most FOR UPDATE SKIP LOCKED
    ), chosen AS (
        SELECT e.session, e.number, e.sequence FROM old JOIN stream_events AS e USING (session, number)
        ORDER BY e.session, e.number, e.sequence LIMIT most
    ), deleted AS (
        DELETE FROM stream_events AS e USING chosen AS c
        WHERE e.session = c.session AND e.number = c.number AND e.sequence = c.sequence
        RETURNING e.session, e.number, e.sequence
    ), through AS (
        SELECT session, number, max(sequence) AS sequence FROM deleted GROUP BY session, number
    ), trimmed AS (
        UPDATE event_streams AS s SET trimmed_through = greatest(s.trimmed_through, t.sequence)
        FROM through AS t WHERE s.session = t.session AND s.number = t.number
    )
    SELECT count(*) INTO gone FROM deleted;
    DELETE FROM event_streams WHERE (session, number) IN (
        SELECT s.session, s.number FROM event_streams AS s
        WHERE s.touched_at_us <= before
            AND NOT EXISTS (SELECT 1 FROM stream_events AS e WHERE e.session = s.session AND e.number = s.number)
        LIMIT most FOR UPDATE SKIP LOCKED
    );
    RETURN gone;
END $$;
