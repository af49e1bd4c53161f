-- A change can name the version of the configuration that it was checked against. Each change reads from this check
-- before it writes. The lock on the version lasts until the change commits, so no other change comes in between.

-- Fails a repeated change that an earlier attempt has made (SQLSTATE MB002), and one that was checked at another version
-- (MB001). The lock waits for an earlier attempt that still commits, and the queries after it see what it wrote.
CREATE FUNCTION check_change(is_repeated boolean, record_id bytea, checked_at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    current_version bigint;
BEGIN
    SELECT version INTO current_version FROM config_version FOR UPDATE;
    IF is_repeated AND EXISTS (SELECT FROM audit WHERE id = record_id) THEN
        RAISE EXCEPTION 'an earlier attempt has made this change' USING ERRCODE = 'MB002';
    END IF;
    IF checked_at IS NOT NULL AND current_version <> checked_at THEN
        RAISE EXCEPTION 'the configuration has version %, not %', current_version, checked_at USING ERRCODE = 'MB001';
    END IF;
    RETURN TRUE;
END
$$;
