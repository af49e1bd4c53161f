-- Results of calls that were too long for their clients, until the clients have read the rest.

CREATE TABLE results (
    result        TEXT NOT NULL PRIMARY KEY,
    tenant        TEXT NOT NULL,
    principal     TEXT NOT NULL,
    backend       TEXT NOT NULL,
    -- Bytes, because the name of a tool may contain NUL.
    tool          BLOB NOT NULL,
    mime_type     TEXT NOT NULL,
    page_bytes    INTEGER NOT NULL,
    body          BLOB NOT NULL,
    created_at_us INTEGER NOT NULL,
    expires_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX results_of_principals ON results (tenant, principal, created_at_us, result, length(body));
CREATE INDEX results_by_expiry ON results (expires_at_us);

CREATE TRIGGER results_of_backends AFTER DELETE ON backends BEGIN
    DELETE FROM results WHERE tenant = OLD.tenant AND backend = OLD.backend;
END;
CREATE TRIGGER results_of_tenants AFTER DELETE ON tenants BEGIN
    DELETE FROM results WHERE tenant = OLD.tenant;
END;
