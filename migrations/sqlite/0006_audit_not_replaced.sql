-- REPLACE removes the rows that are in its way without asking the triggers on DELETE. So a row that is there already is refused
-- before it could be replaced: by its number, its id, or its place in its chain.

CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE number = NEW.number)
  OR EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)
  OR EXISTS (SELECT 1 FROM audit WHERE coalesce(tenant, '') = coalesce(NEW.tenant, '') AND chain_position = NEW.chain_position)
BEGIN SELECT RAISE(ABORT, 'the audit log is not changed'); END;

CREATE TRIGGER audit_chains_are_not_replaced BEFORE INSERT ON audit_chains
WHEN EXISTS (SELECT 1 FROM audit_chains WHERE chain = NEW.chain)
BEGIN SELECT RAISE(ABORT, 'chains of the audit log are kept'); END;
