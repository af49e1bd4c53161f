-- Calls that wait for the approval of a person.

CREATE TABLE approvals (
    approval        TEXT PRIMARY KEY NOT NULL,
    tenant          TEXT NOT NULL,
    principal       TEXT NOT NULL,
    backend         TEXT NOT NULL,
    tool            TEXT NOT NULL,
    -- Digests of the tool's definition, and of the arguments in their canonical form.
    definition      BLOB NOT NULL,
    arguments_hash  BLOB NOT NULL,
    arguments       BLOB NOT NULL,
    -- Digest of all that the approval is bound to, and the same without the arguments.
    binding         BLOB NOT NULL,
    window_key      BLOB NOT NULL,
    -- JSON text: the rule, and who may decide.
    terms           TEXT NOT NULL,
    ttl_us          INTEGER NOT NULL,
    -- 'pending', 'approved', 'denied', 'expired' or 'used'.
    state           TEXT NOT NULL,
    decided_by      TEXT,
    decision_reason TEXT,
    decided_at_us   INTEGER,
    -- Until then, calls of the tool by the principal need no other approval.
    window_until_us INTEGER,
    -- The call that used the approval.
    used_by         TEXT,
    created_at_us   INTEGER NOT NULL,
    expires_at_us   INTEGER NOT NULL,
    changed_at_us   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A call has at most one approval that it can wait for or use.
CREATE UNIQUE INDEX approvals_open ON approvals (binding) WHERE state IN ('pending', 'approved');
CREATE INDEX approvals_windows ON approvals (window_key, window_until_us) WHERE window_until_us IS NOT NULL;
CREATE INDEX approvals_pending ON approvals (tenant, principal, expires_at_us) WHERE state = 'pending';
CREATE INDEX approvals_by_time ON approvals (tenant, created_at_us, approval);
CREATE INDEX approvals_by_state ON approvals (state, changed_at_us);

CREATE TRIGGER approvals_of_backends AFTER DELETE ON backends BEGIN
    DELETE FROM approvals WHERE tenant = OLD.tenant AND backend = OLD.backend;
END;
CREATE TRIGGER approvals_of_tenants AFTER DELETE ON tenants BEGIN
    DELETE FROM approvals WHERE tenant = OLD.tenant;
END;
