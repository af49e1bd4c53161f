-- Backends that get no calls because an operator said so, on every replica, until one says otherwise. Backends of the
-- configuration file are in no table, so nothing here refers to one.

CREATE TABLE held_breakers (
    tenant  TEXT COLLATE "C" NOT NULL,
    backend TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, backend)
);

CREATE TRIGGER counts_changes AFTER INSERT OR DELETE ON held_breakers FOR EACH ROW EXECUTE FUNCTION count_config_change();

-- Another backend, or tenant, of the same name begins like any other.
CREATE FUNCTION let_go_of_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM held_breakers WHERE tenant = coalesce(NEW.tenant, OLD.tenant) AND backend = coalesce(NEW.backend, OLD.backend);
    RETURN NULL;
END $$;

CREATE FUNCTION let_go_of_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM held_breakers WHERE tenant = OLD.tenant;
    RETURN NULL;
END $$;

CREATE TRIGGER lets_go AFTER INSERT OR DELETE ON backends FOR EACH ROW EXECUTE FUNCTION let_go_of_backend();
CREATE TRIGGER lets_go AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION let_go_of_tenant();
