-- A tenant begins without anything of an earlier one of its name. Requests of that one may have written more rows after its
-- removal, and these tables refer to no tenant.

CREATE TRIGGER tenants_begin_with_nothing AFTER INSERT ON tenants BEGIN
    DELETE FROM sessions WHERE tenant = NEW.tenant;
    DELETE FROM tasks WHERE tenant = NEW.tenant;
    DELETE FROM upstream_grants WHERE tenant = NEW.tenant;
    DELETE FROM upstream_secrets WHERE tenant = NEW.tenant;
    DELETE FROM catalog_pins WHERE tenant = NEW.tenant;
    DELETE FROM approvals WHERE tenant = NEW.tenant;
    DELETE FROM results WHERE tenant = NEW.tenant;
    DELETE FROM held_breakers WHERE tenant = NEW.tenant;
END;
