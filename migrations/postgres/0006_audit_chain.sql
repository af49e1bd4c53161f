-- The audit log as hash chains: one for each tenant, and one (named '') for records without a tenant. A record's hash covers the
-- record and the hash before it. Records that are older than this migration belong to no chain.

ALTER TABLE audit ADD COLUMN chain_position BIGINT, ADD COLUMN chain_hash BYTEA;

CREATE UNIQUE INDEX audit_by_chain ON audit (coalesce(tenant, ''), chain_position) WHERE chain_position IS NOT NULL;
CREATE INDEX audit_outside_chains ON audit (number) WHERE chain_position IS NULL;

CREATE TABLE audit_chains (
    chain                TEXT COLLATE "C" PRIMARY KEY,
    -- Records that were ever added, and the hash of the last one.
    length               BIGINT NOT NULL DEFAULT 0,
    head                 BYTEA NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    -- The last record that the retention removed, its hash, and the signature of a broker on the removal.
    start_position       BIGINT NOT NULL DEFAULT 0,
    start_hash           BYTEA NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    start_before_us      BIGINT NOT NULL DEFAULT 0,
    start_signature      BYTEA,
    -- The newest checkpoint.
    checkpoint_count     BIGINT NOT NULL DEFAULT 0,
    checkpoint_head      BYTEA,
    checkpoint_at_us     BIGINT NOT NULL DEFAULT 0,
    checkpoint_signature BYTEA
) WITH (fillfactor = 50);

-- Chains with records that no checkpoint covers.
CREATE INDEX audit_chains_ahead ON audit_chains (chain) WHERE length > checkpoint_count;

-- How long records are kept, as a signed text. Until there is one, nothing is removed.
CREATE TABLE audit_retention_terms (
    only_row  BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    version   BIGINT NOT NULL,
    terms     TEXT NOT NULL,
    signature BYTEA NOT NULL
);

ALTER TABLE audit_retention ADD COLUMN unchained_until BIGINT NOT NULL DEFAULT 0;
UPDATE audit_retention SET unchained_until = coalesce((SELECT max(number) FROM audit), 0);

-- The hash of a record. storage/src/audit_chain.rs computes the same.
CREATE FUNCTION audit_hash(previous BYTEA, place BIGINT, number BIGINT, id BYTEA, at_us BIGINT, kind TEXT, tenant TEXT, body BYTEA)
RETURNS BYTEA LANGUAGE sql STABLE AS $$
    SELECT sha256(previous || int8send(place) || int8send(number) || int8send(at_us) || id
        || int4send(length(convert_to(kind, 'UTF8'))) || convert_to(kind, 'UTF8')
        || CASE WHEN tenant IS NULL THEN int4send(-1)
                ELSE int4send(length(convert_to(tenant, 'UTF8'))) || convert_to(tenant, 'UTF8') END
        || body)
$$;

-- The last record of a chain, which nobody else extends until the end of the transaction.
CREATE FUNCTION lock_audit_chain(name TEXT) RETURNS audit_chains LANGUAGE plpgsql AS $$
DECLARE
    locked audit_chains;
BEGIN
    INSERT INTO audit_chains (chain) VALUES (name) ON CONFLICT DO NOTHING;
    SELECT * INTO locked FROM audit_chains WHERE chain = name FOR UPDATE;
    RETURN locked;
END $$;

-- Adds records in the order given. Known ones are passed over. Returns how many are new.
CREATE FUNCTION append_audit(ids BYTEA[], moments BIGINT[], kinds TEXT[], tenants TEXT[], bodies BYTEA[])
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    -- In order of their names, so that no two writers wait for each other.
    names   TEXT[] := ARRAY(SELECT DISTINCT coalesce(tenant, '') COLLATE "C" FROM unnest(tenants) AS tenant ORDER BY 1);
    lengths BIGINT[];
    heads   BYTEA[];
    chain   audit_chains;
    given   RECORD;
    place   INTEGER;
    new_number BIGINT;
    hash    BYTEA;
    added   BIGINT := 0;
BEGIN
    FOR place IN 1 .. coalesce(cardinality(names), 0) LOOP
        chain := lock_audit_chain(names[place]);
        lengths[place] := chain.length;
        heads[place] := chain.head;
    END LOOP;
    FOR given IN
        SELECT * FROM unnest(ids, moments, kinds, tenants, bodies) WITH ORDINALITY AS one (id, at_us, kind, tenant, body, turn) ORDER BY one.turn
    LOOP
        place := array_position(names, coalesce(given.tenant, ''));
        new_number := nextval(pg_get_serial_sequence('audit', 'number'));
        hash := audit_hash(heads[place], lengths[place] + 1, new_number, given.id, given.at_us, given.kind, given.tenant, given.body);
        INSERT INTO audit (number, id, at_us, kind, tenant, body, chain_position, chain_hash)
        OVERRIDING SYSTEM VALUE
        VALUES (new_number, given.id, given.at_us, given.kind, given.tenant, given.body, lengths[place] + 1, hash)
        ON CONFLICT (id) DO NOTHING;
        IF FOUND THEN
            lengths[place] := lengths[place] + 1;
            heads[place] := hash;
            added := added + 1;
        END IF;
    END LOOP;
    UPDATE audit_chains SET length = latest.length, head = latest.head
    FROM unnest(names, lengths, heads) AS latest (chain, length, head)
    WHERE audit_chains.chain = latest.chain AND audit_chains.length < latest.length;
    RETURN added;
END $$;

-- A record of a replica that does not know chains yet is chained here.
CREATE FUNCTION audit_is_chained() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    chain audit_chains;
BEGIN
    IF NEW.chain_hash IS NOT NULL AND NEW.chain_position IS NOT NULL THEN
        RETURN NEW;
    END IF;
    chain := lock_audit_chain(coalesce(NEW.tenant, ''));
    IF EXISTS (SELECT FROM audit WHERE audit.id = NEW.id) THEN
        RETURN NULL;
    END IF;
    -- After the lock, so that numbers grow along the chain.
    NEW.number := nextval(pg_get_serial_sequence('audit', 'number'));
    NEW.chain_position := chain.length + 1;
    NEW.chain_hash := audit_hash(chain.head, NEW.chain_position, NEW.number, NEW.id, NEW.at_us, NEW.kind, NEW.tenant, NEW.body);
    UPDATE audit_chains SET length = NEW.chain_position, head = NEW.chain_hash WHERE audit_chains.chain = chain.chain;
    RETURN NEW;
END $$;

CREATE TRIGGER is_chained BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_chained();

CREATE OR REPLACE FUNCTION audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at_us < (SELECT before_us FROM audit_retention) AND (
        OLD.chain_position IS NULL
        OR OLD.chain_position <= (SELECT start_position FROM audit_chains WHERE chain = coalesce(OLD.tenant, '')))
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only added to';
END $$;

-- Of records that belong to no chain. A replica that does not know chains yet calls it, too.
CREATE OR REPLACE FUNCTION trim_audit(before BIGINT, most BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    gone BIGINT;
BEGIN
    UPDATE audit_retention SET before_us = before WHERE before_us < before;
    DELETE FROM audit WHERE number IN (
        SELECT number FROM audit WHERE at_us < before AND chain_position IS NULL ORDER BY at_us LIMIT most FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Removes the oldest records of a chain, up to one whose hash is known. Returns how many rows went.
CREATE FUNCTION cut_audit_chain(name TEXT, upto BIGINT, hash BYTEA, before BIGINT, signature BYTEA) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    gone BIGINT;
BEGIN
    UPDATE audit_chains SET start_position = upto, start_hash = hash, start_before_us = before, start_signature = signature
    WHERE chain = name AND start_position < upto
      AND EXISTS (SELECT FROM audit WHERE coalesce(tenant, '') = name AND chain_position = upto AND chain_hash = hash);
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    UPDATE audit_retention SET before_us = before WHERE before_us < before;
    DELETE FROM audit WHERE coalesce(tenant, '') = name AND chain_position <= upto;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Keeps the newer checkpoints of those given. Returns the chains that took one; `again`: or have the very same one already.
CREATE FUNCTION put_audit_checkpoints(names TEXT[], counts BIGINT[], heads BYTEA[], moments BIGINT[], signatures BYTEA[], again BOOLEAN)
RETURNS SETOF TEXT LANGUAGE sql AS $$
    WITH given AS (
        SELECT * FROM unnest(names, counts, heads, moments, signatures) AS one (name, count, head, at_us, signature)),
    known AS (
        SELECT name FROM given JOIN audit_chains ON chain = name
        WHERE again AND checkpoint_count = count AND checkpoint_signature = signature),
    locked AS (SELECT chain FROM audit_chains WHERE chain = ANY (names) ORDER BY chain FOR UPDATE),
    taken AS (
        UPDATE audit_chains SET checkpoint_count = count, checkpoint_head = given.head, checkpoint_at_us = at_us, checkpoint_signature = signature
        FROM given, locked WHERE audit_chains.chain = name AND locked.chain = name AND checkpoint_count < count RETURNING name)
    SELECT name FROM taken UNION SELECT name FROM known
$$;

CREATE FUNCTION audit_chains_grow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.length >= OLD.length AND NEW.start_position >= OLD.start_position
        AND NEW.checkpoint_count >= OLD.checkpoint_count
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'chains of the audit log only grow';
END $$;

CREATE TRIGGER only_grow BEFORE UPDATE OR DELETE ON audit_chains FOR EACH ROW EXECUTE FUNCTION audit_chains_grow();
CREATE TRIGGER is_not_emptied BEFORE TRUNCATE ON audit_chains FOR EACH STATEMENT EXECUTE FUNCTION audit_is_not_emptied();
