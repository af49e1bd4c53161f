-- Backends that get no calls because an operator said so, on every replica, until one says otherwise. Backends of the
-- configuration file are in no table, so nothing here refers to one.

CREATE TABLE held_breakers (
    tenant  TEXT NOT NULL,
    backend TEXT NOT NULL,
    PRIMARY KEY (tenant, backend)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER held_breakers_added AFTER INSERT ON held_breakers BEGIN UPDATE config_version SET version = version + 1; END;
CREATE TRIGGER held_breakers_removed AFTER DELETE ON held_breakers BEGIN UPDATE config_version SET version = version + 1; END;

-- Another backend, or tenant, of the same name begins like any other.
CREATE TRIGGER backends_let_go AFTER DELETE ON backends BEGIN
    DELETE FROM held_breakers WHERE tenant = OLD.tenant AND backend = OLD.backend;
END;
CREATE TRIGGER backends_begin_anew AFTER INSERT ON backends BEGIN
    DELETE FROM held_breakers WHERE tenant = NEW.tenant AND backend = NEW.backend;
END;
CREATE TRIGGER tenants_let_go AFTER DELETE ON tenants BEGIN DELETE FROM held_breakers WHERE tenant = OLD.tenant; END;
