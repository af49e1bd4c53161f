-- The clock of this server says when a revocation was stored, as it says when a session was created. A trigger sets the
-- time, also for replicas of the build before.

ALTER TABLE revocations ADD COLUMN stored_at_us BIGINT;

UPDATE revocations SET stored_at_us = greatest(created_at_us, issued_before_us);

CREATE FUNCTION stamp_revocation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.stored_at_us := now_us();
    RETURN NEW;
END $$;

CREATE TRIGGER stamps_revocations BEFORE INSERT OR UPDATE ON revocations FOR EACH ROW EXECUTE FUNCTION stamp_revocation();
