-- Pins of catalog objects. Backends of the configuration file are in no table, so nothing here refers to one.

CREATE TABLE catalog_pins (
    tenant              TEXT COLLATE "C" NOT NULL,
    backend             TEXT COLLATE "C" NOT NULL,
    -- 'tool', 'prompt', 'resource', 'template', 'instructions' or 'command'.
    kind                TEXT COLLATE "C" NOT NULL,
    name                TEXT COLLATE "C" NOT NULL,
    -- Of the first definition that any replica saw.
    first_hash          TEXT COLLATE "C" NOT NULL,
    seen_hash           TEXT COLLATE "C" NOT NULL,
    is_listed           BOOLEAN NOT NULL,
    -- Hashes that operators approved, the newest first, each with a space after it.
    approved            TEXT COLLATE "C" NOT NULL DEFAULT '',
    is_blocked          BOOLEAN NOT NULL DEFAULT FALSE,
    -- Grows with every decision of an operator.
    decisions           BIGINT NOT NULL DEFAULT 0,
    decided_by          TEXT,
    decided_at_us       BIGINT,
    -- JSON texts.
    accepted_definition TEXT NOT NULL,
    seen_definition     TEXT NOT NULL,
    findings            TEXT NOT NULL,
    first_seen_at_us    BIGINT NOT NULL,
    seen_at_us          BIGINT NOT NULL,
    PRIMARY KEY (tenant, backend, kind, name)
);

CREATE INDEX catalog_pins_decided ON catalog_pins (tenant, backend, decisions) WHERE decisions > 0;

-- Other replicas learn of decisions as of every change. A sighting is none.
CREATE TRIGGER counts_decisions AFTER UPDATE OF decisions ON catalog_pins FOR EACH STATEMENT EXECUTE FUNCTION count_config_change();

-- Another backend, or tenant, of the same name begins without pins.
CREATE FUNCTION end_pins_of_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM catalog_pins WHERE tenant = coalesce(NEW.tenant, OLD.tenant) AND backend = coalesce(NEW.backend, OLD.backend);
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_pins AFTER INSERT OR DELETE ON backends FOR EACH ROW EXECUTE FUNCTION end_pins_of_backend();

CREATE FUNCTION end_pins_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM catalog_pins WHERE tenant = OLD.tenant;
    RETURN NULL;
END
$$;
CREATE TRIGGER ends_pins AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION end_pins_of_tenant();

-- Approves all of the given hashes, or none if one is not the hash that was seen last. The rows stay locked in between.
CREATE FUNCTION approve_pins(of_tenant TEXT, of_backend TEXT, kinds TEXT[], names TEXT[], hashes TEXT[], decider TEXT,
    at_us BIGINT, forgets_gone BOOLEAN, approved_chars INT) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    fitting BIGINT;
BEGIN
    PERFORM FROM catalog_pins p JOIN unnest(kinds, names) AS asked (kind, name) ON p.kind = asked.kind AND p.name = asked.name
        WHERE p.tenant = of_tenant AND p.backend = of_backend ORDER BY p.kind, p.name FOR UPDATE OF p;
    SELECT count(*) INTO fitting
        FROM catalog_pins p JOIN unnest(kinds, names, hashes) AS asked (kind, name, hash)
            ON p.kind = asked.kind AND p.name = asked.name AND p.seen_hash = asked.hash
        WHERE p.tenant = of_tenant AND p.backend = of_backend;
    IF fitting <> cardinality(kinds) THEN
        RETURN FALSE;
    END IF;
    UPDATE catalog_pins p
        SET approved = substr(asked.hash || ' ' || replace(p.approved, asked.hash || ' ', ''), 1, approved_chars),
            is_blocked = FALSE, decisions = p.decisions + 1, decided_by = decider, decided_at_us = at_us,
            accepted_definition = p.seen_definition
        FROM unnest(kinds, names, hashes) AS asked (kind, name, hash)
        WHERE p.tenant = of_tenant AND p.backend = of_backend AND p.kind = asked.kind AND p.name = asked.name;
    IF forgets_gone THEN
        DELETE FROM catalog_pins WHERE tenant = of_tenant AND backend = of_backend AND NOT is_listed AND decisions = 0;
    END IF;
    RETURN TRUE;
END
$$;

-- Blocks all of the given objects, or none if one was never seen.
CREATE FUNCTION block_pins(of_tenant TEXT, of_backend TEXT, kinds TEXT[], names TEXT[], decider TEXT, at_us BIGINT)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    fitting BIGINT;
BEGIN
    PERFORM FROM catalog_pins p JOIN unnest(kinds, names) AS asked (kind, name) ON p.kind = asked.kind AND p.name = asked.name
        WHERE p.tenant = of_tenant AND p.backend = of_backend ORDER BY p.kind, p.name FOR UPDATE OF p;
    GET DIAGNOSTICS fitting = ROW_COUNT;
    IF fitting <> cardinality(kinds) THEN
        RETURN FALSE;
    END IF;
    UPDATE catalog_pins p
        SET is_blocked = TRUE, decisions = p.decisions + 1, decided_by = decider, decided_at_us = at_us
        FROM unnest(kinds, names) AS asked (kind, name)
        WHERE p.tenant = of_tenant AND p.backend = of_backend AND p.kind = asked.kind AND p.name = asked.name;
    RETURN TRUE;
END
$$;
