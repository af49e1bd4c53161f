-- Pins of catalog objects. Backends of the configuration file are in no table, so nothing here refers to one.

CREATE TABLE catalog_pins (
    tenant              TEXT NOT NULL,
    backend             TEXT NOT NULL,
    -- 'tool', 'prompt', 'resource', 'template', 'instructions' or 'command'.
    kind                TEXT NOT NULL,
    name                TEXT NOT NULL,
    -- Of the first definition that any replica saw.
    first_hash          TEXT NOT NULL,
    seen_hash           TEXT NOT NULL,
    is_listed           INTEGER NOT NULL,
    -- Hashes that operators approved, the newest first, each with a space after it.
    approved            TEXT NOT NULL DEFAULT '',
    is_blocked          INTEGER NOT NULL DEFAULT 0,
    -- Grows with every decision of an operator.
    decisions           INTEGER NOT NULL DEFAULT 0,
    decided_by          TEXT,
    decided_at_us       INTEGER,
    -- JSON texts.
    accepted_definition TEXT NOT NULL,
    seen_definition     TEXT NOT NULL,
    findings            TEXT NOT NULL,
    first_seen_at_us    INTEGER NOT NULL,
    seen_at_us          INTEGER NOT NULL,
    PRIMARY KEY (tenant, backend, kind, name)
) STRICT;

CREATE INDEX catalog_pins_decided ON catalog_pins (tenant, backend, decisions) WHERE decisions > 0;

-- Other replicas learn of decisions as of every change. A sighting is none.
CREATE TRIGGER catalog_pins_changed AFTER UPDATE OF decisions ON catalog_pins
BEGIN UPDATE config_version SET version = version + 1; END;

-- Another backend, or tenant, of the same name begins without pins.
CREATE TRIGGER catalog_pins_of_removed_backends AFTER DELETE ON backends BEGIN
    DELETE FROM catalog_pins WHERE tenant = OLD.tenant AND backend = OLD.backend;
END;
CREATE TRIGGER catalog_pins_of_new_backends AFTER INSERT ON backends BEGIN
    DELETE FROM catalog_pins WHERE tenant = NEW.tenant AND backend = NEW.backend;
END;
CREATE TRIGGER catalog_pins_of_tenants AFTER DELETE ON tenants BEGIN
    DELETE FROM catalog_pins WHERE tenant = OLD.tenant;
END;
