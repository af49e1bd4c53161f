-- Expired tasks are found by the entries of an index. The clock is read once, because an index condition takes no value that
-- changes within the statement.

CREATE OR REPLACE FUNCTION expire_tasks(most INTEGER) RETURNS SETOF TEXT LANGUAGE plpgsql AS $$
DECLARE
    at BIGINT := now_us();
    chosen TEXT[];
    one RECORD;
BEGIN
    chosen := ARRAY(SELECT task FROM tasks WHERE expires_at_us <= at ORDER BY expires_at_us LIMIT most);
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
