-- An answer of a client beyond the bytes of its tenant is refused, as a question of a backend is.

-- As before, and it checks the bytes of answers.
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
    was_closed BOOLEAN;
    concerned TEXT[];
BEGIN
    -- Tenants whose counts change. Their rows are locked before any task is.
    concerned := ARRAY(
        SELECT u.tenant FROM unnest(kinds, tenants) AS u (kind, tenant) WHERE u.kind = 0
        UNION
        SELECT tasks.tenant FROM unnest(kinds, ids) AS u (kind, id) JOIN tasks ON tasks.task = u.id WHERE u.kind IN (2, 4, 5, 6)
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
            size := coalesce(length(w.outcome), 0)
                - (SELECT coalesce(sum(bytes), 0)::bigint FROM task_inputs WHERE task = w.task);
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
        WHEN 4 THEN -- ask; replicas of the build before send no `bytes_max`
            SELECT closed INTO was_closed FROM task_inputs WHERE task = w.task AND number = w.number;
            IF NOT FOUND THEN
                SELECT bytes INTO used FROM task_usage WHERE tenant = t.tenant;
                size := length(w.request);
                IF used.bytes + size > w.bytes_max THEN
                    outcome := 8;
                ELSE
                    INSERT INTO task_inputs (task, number, request, bytes) VALUES (w.task, w.number, w.request, size);
                    UPDATE tasks SET bytes = bytes + size WHERE task = w.task;
                    UPDATE task_usage SET bytes = bytes + size WHERE tenant = t.tenant;
                END IF;
            ELSIF was_closed THEN
                outcome := 3;
            END IF;
            IF outcome = 0 AND t.status <> 'input_required' THEN
                UPDATE tasks SET status = 'input_required', revision = revision + 1, updated_at_us = at WHERE task = w.task;
                INSERT INTO task_transitions (task, revision, status, at_us, epoch)
                VALUES (w.task, t.revision + 1, 'input_required', at, w.epoch);
            END IF;
        WHEN 5 THEN -- answer; replicas of the build before send no `bytes_max`
            size := length(w.outcome);
            SELECT bytes INTO used FROM task_usage WHERE tenant = t.tenant;
            IF used.bytes + size > w.bytes_max AND EXISTS (
                SELECT 1 FROM task_inputs WHERE task = w.task AND number = w.number AND answer IS NULL AND NOT closed
            ) THEN
                outcome := 8;
                RETURN NEXT;
                CONTINUE;
            END IF;
            UPDATE task_inputs SET answer = w.outcome, bytes = bytes + size
            WHERE task = w.task AND number = w.number AND answer IS NULL AND NOT closed;
            IF FOUND THEN
                UPDATE tasks SET bytes = bytes + size WHERE task = w.task;
                UPDATE task_usage SET bytes = bytes + size WHERE tenant = t.tenant;
            ELSE
                outcome := coalesce((SELECT CASE WHEN again AND answer = w.outcome THEN 0 ELSE 3 END
                                     FROM task_inputs WHERE task = w.task AND number = w.number), 4);
            END IF;
        WHEN 6 THEN -- close; what was said is of no more use
            size := coalesce((SELECT bytes FROM task_inputs WHERE task = w.task AND number = w.number), 0);
            UPDATE task_inputs SET closed = TRUE, request = '', answer = NULL, bytes = 0
            WHERE task = w.task AND number = w.number;
            IF size > 0 THEN
                UPDATE tasks SET bytes = bytes - size WHERE task = w.task;
                UPDATE task_usage SET bytes = bytes - size WHERE tenant = t.tenant;
            END IF;
            IF t.status = 'input_required' AND NOT EXISTS (SELECT 1 FROM task_inputs WHERE task = w.task AND NOT closed) THEN
                UPDATE tasks SET status = 'working', revision = revision + 1, updated_at_us = at WHERE task = w.task;
                INSERT INTO task_transitions (task, revision, status, at_us, epoch)
                VALUES (w.task, t.revision + 1, 'working', at, w.epoch);
            END IF;
        END CASE;
        RETURN NEXT;
    END LOOP;
END $$;
