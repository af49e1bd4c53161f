-- A tenant begins without anything of an earlier one of its name. Replicas that had not yet read the removal of that one
-- may have written more rows since, and these tables refer to no tenant.

CREATE FUNCTION begin_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM task_usage WHERE tenant = NEW.tenant;
    DELETE FROM sessions WHERE tenant = NEW.tenant;
    DELETE FROM tasks WHERE tenant = NEW.tenant;
    DELETE FROM upstream_grants WHERE tenant = NEW.tenant;
    DELETE FROM upstream_secrets WHERE tenant = NEW.tenant;
    DELETE FROM catalog_pins WHERE tenant = NEW.tenant;
    DELETE FROM approvals WHERE tenant = NEW.tenant;
    DELETE FROM results WHERE tenant = NEW.tenant;
    DELETE FROM held_breakers WHERE tenant = NEW.tenant;
    RETURN NULL;
END $$;

CREATE TRIGGER begins_with_nothing AFTER INSERT ON tenants FOR EACH ROW EXECUTE FUNCTION begin_tenant();
