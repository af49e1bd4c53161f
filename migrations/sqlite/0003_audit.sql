-- Who did what: every change of an operator, and calls where that is configured. Rows are added and, when their time is over,
-- removed; nothing changes one. Times are microseconds since 1970-01-01 UTC.

CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Of the writer's making: the same record is added once, however often it is sent.
    id     BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    at_us  INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    tenant TEXT,
    -- JSON, redacted by the writer.
    body   TEXT NOT NULL
) STRICT;

CREATE INDEX audit_by_time ON audit (at_us);
CREATE INDEX audit_by_tenant ON audit (tenant, number);

-- What is older may be removed. Only the retention moves it.
CREATE TABLE audit_retention (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    before_us INTEGER NOT NULL
) STRICT;

INSERT INTO audit_retention (only_row, before_us) VALUES (1, 0);

CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is not changed'); END;

CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit WHEN OLD.at_us >= (SELECT before_us FROM audit_retention)
BEGIN SELECT RAISE(ABORT, 'the audit log is kept for its time'); END;
