-- The audit log as hash chains: one for each tenant, and one (named '') for records without a tenant. A record's hash covers the
-- record and the hash before it. Records that are older than this migration belong to no chain.

ALTER TABLE audit ADD COLUMN chain_position INTEGER;
ALTER TABLE audit ADD COLUMN chain_hash BLOB;

CREATE UNIQUE INDEX audit_by_chain ON audit (coalesce(tenant, ''), chain_position) WHERE chain_position IS NOT NULL;
CREATE INDEX audit_outside_chains ON audit (number) WHERE chain_position IS NULL;

CREATE TABLE audit_chains (
    chain                TEXT PRIMARY KEY,
    -- Records that were ever added, and the hash of the last one.
    length               INTEGER NOT NULL,
    head                 BLOB NOT NULL,
    -- The last record that the retention removed, its hash, and the signature of a broker on the removal.
    start_position       INTEGER NOT NULL DEFAULT 0,
    start_hash           BLOB NOT NULL,
    start_before_us      INTEGER NOT NULL DEFAULT 0,
    start_signature      BLOB,
    -- The newest checkpoint.
    checkpoint_count     INTEGER NOT NULL DEFAULT 0,
    checkpoint_head      BLOB,
    checkpoint_at_us     INTEGER NOT NULL DEFAULT 0,
    checkpoint_signature BLOB
) STRICT, WITHOUT ROWID;

-- Chains with records that no checkpoint covers.
CREATE INDEX audit_chains_ahead ON audit_chains (chain) WHERE length > checkpoint_count;

-- How long records are kept, as a signed text. Until there is one, nothing is removed.
CREATE TABLE audit_retention_terms (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    version   INTEGER NOT NULL,
    terms     TEXT NOT NULL,
    signature BLOB NOT NULL
) STRICT;

ALTER TABLE audit_retention ADD COLUMN unchained_until INTEGER NOT NULL DEFAULT 0;
UPDATE audit_retention SET unchained_until = coalesce((SELECT max(number) FROM audit), 0);

CREATE TRIGGER audit_is_chained BEFORE INSERT ON audit WHEN NEW.chain_position IS NULL OR NEW.chain_hash IS NULL
BEGIN SELECT RAISE(ABORT, 'records of the audit log belong to a chain'); END;

DROP TRIGGER audit_is_kept;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
WHEN OLD.at_us >= (SELECT before_us FROM audit_retention)
  OR OLD.chain_position > coalesce((SELECT start_position FROM audit_chains WHERE chain = coalesce(OLD.tenant, '')), 0)
BEGIN SELECT RAISE(ABORT, 'the audit log is kept for its time'); END;

CREATE TRIGGER audit_chains_are_kept BEFORE DELETE ON audit_chains
BEGIN SELECT RAISE(ABORT, 'chains of the audit log are kept'); END;

CREATE TRIGGER audit_chains_grow BEFORE UPDATE ON audit_chains
WHEN NEW.length < OLD.length OR NEW.start_position < OLD.start_position OR NEW.checkpoint_count < OLD.checkpoint_count
BEGIN SELECT RAISE(ABORT, 'chains of the audit log only grow'); END;
