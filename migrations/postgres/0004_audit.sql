-- Who did what: every change of an operator, and calls where that is configured. Rows are added and, when their time is over,
-- removed; nothing changes one. Times are microseconds since 1970-01-01 UTC.

CREATE TABLE audit (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Of the writer's making: the same record is added once, however often it is sent.
    id     BYTEA NOT NULL UNIQUE CHECK (length(id) = 16),
    at_us  BIGINT NOT NULL,
    kind   TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C",
    -- JSON, redacted by the writer; as bytes, since a text of JSON may hold what a column of texts may not.
    body   BYTEA NOT NULL
);

CREATE INDEX audit_by_time ON audit (at_us);
CREATE INDEX audit_by_tenant ON audit (tenant, number);

-- What is older may be removed. Only the retention moves it.
CREATE TABLE audit_retention (
    only_row  BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    before_us BIGINT NOT NULL
);

INSERT INTO audit_retention (before_us) VALUES (0);

CREATE FUNCTION audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at_us < (SELECT before_us FROM audit_retention) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only added to';
END $$;

CREATE FUNCTION audit_is_not_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is only added to';
END $$;

CREATE TRIGGER is_kept BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_kept();
CREATE TRIGGER is_not_emptied BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_is_not_emptied();

-- Returns how many rows went. The limit moves forward only.
CREATE FUNCTION trim_audit(before BIGINT, most BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    gone BIGINT;
BEGIN
    UPDATE audit_retention SET before_us = before WHERE before_us < before;
    DELETE FROM audit WHERE number IN (
        SELECT number FROM audit WHERE at_us < before ORDER BY at_us LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
