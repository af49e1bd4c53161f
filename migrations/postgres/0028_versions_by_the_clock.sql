-- The version of the configuration also follows the clock. A failover to an asynchronous standby loses the newest changes
-- with their versions. The next change must not get the version of a lost one: a replica that applied the lost change would
-- take the new one for it, and would not read it.

CREATE OR REPLACE FUNCTION count_config_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE config_version SET version = greatest(version + 1, now_us());
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION count_changed_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM changed) THEN
        UPDATE config_version SET version = greatest(version + 1, now_us());
    END IF;
    RETURN NULL;
END $$;
