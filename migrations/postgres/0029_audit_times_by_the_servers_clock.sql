-- The clock of this server bounds the times of audit records, by which the retention removes them. Without that, the
-- records of a replica whose clock stands in 1970 would be removed at once. One record of a replica whose clock is a year
-- ahead would keep its chain for a year more. A record may wait in its replica while this server is away, so a difference
-- of a day is left alone. The body of a record has the time of the replica as it was.

CREATE FUNCTION audit_time(given BIGINT) RETURNS BIGINT LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at  BIGINT := now_us();
    day CONSTANT BIGINT := 86400000000;
BEGIN
    RETURN least(greatest(given, at - day), at + day);
END $$;

-- Adds records in the order given. Known ones are passed over. Returns how many are new.
CREATE OR REPLACE FUNCTION append_audit(ids BYTEA[], moments BIGINT[], kinds TEXT[], tenants TEXT[], bodies BYTEA[])
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    -- In order of their names, so that no two writers wait for each other.
    names   TEXT[] := ARRAY(SELECT DISTINCT coalesce(tenant, '') COLLATE "C" FROM unnest(tenants) AS tenant ORDER BY 1);
    lengths BIGINT[];
    heads   BYTEA[];
    chain   audit_chains;
    given   RECORD;
    place   INTEGER;
    moment  BIGINT;
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
        moment := audit_time(given.at_us);
        new_number := nextval(pg_get_serial_sequence('audit', 'number'));
        hash := audit_hash(heads[place], lengths[place] + 1, new_number, given.id, moment, given.kind, given.tenant, given.body);
        INSERT INTO audit (number, id, at_us, kind, tenant, body, chain_position, chain_hash)
        OVERRIDING SYSTEM VALUE
        VALUES (new_number, given.id, moment, given.kind, given.tenant, given.body, lengths[place] + 1, hash)
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
CREATE OR REPLACE FUNCTION audit_is_chained() RETURNS trigger LANGUAGE plpgsql AS $$
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
    NEW.at_us := audit_time(NEW.at_us);
    NEW.chain_hash := audit_hash(chain.head, NEW.chain_position, NEW.number, NEW.id, NEW.at_us, NEW.kind, NEW.tenant, NEW.body);
    UPDATE audit_chains SET length = NEW.chain_position, head = NEW.chain_hash WHERE audit_chains.chain = chain.chain;
    RETURN NEW;
END $$;
