-- A tenant's tasks and sessions are removed in steps, each within the time limit of a statement. `delete_tenant` removes
-- the few that were added since. Rows that others have locked are left to it, too.

CREATE FUNCTION remove_tasks_of(gone TEXT, most INTEGER) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    removed RECORD;
BEGIN
    PERFORM 1 FROM task_usage WHERE tenant = gone FOR UPDATE;
    WITH chosen AS (
        DELETE FROM tasks WHERE task IN (
            SELECT task FROM tasks WHERE tenant = gone LIMIT most FOR UPDATE SKIP LOCKED
        ) RETURNING bytes, status
    )
    SELECT count(*) AS stored, count(*) FILTER (WHERE status IN ('working', 'input_required')) AS running,
           count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
           coalesce(sum(bytes), 0)::bigint AS bytes
    INTO removed FROM chosen;
    UPDATE task_usage AS u
    SET stored = u.stored - removed.stored, running = u.running - removed.running, bytes = u.bytes - removed.bytes,
        failed = greatest(u.failed - removed.failed, 0), cancelled = greatest(u.cancelled - removed.cancelled, 0)
    WHERE u.tenant = gone;
    RETURN removed.stored;
END $$;

CREATE FUNCTION remove_sessions_of(gone TEXT, most INTEGER) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    removed BIGINT;
BEGIN
    DELETE FROM sessions WHERE key IN (
        SELECT key FROM sessions WHERE tenant = gone LIMIT most FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
