-- Lists of sessions continue after a position, which is valid even if the session there is gone.

CREATE INDEX sessions_by_creation ON sessions (created_at_us, key);
DROP INDEX sessions_by_tenant;
CREATE INDEX sessions_by_tenant ON sessions (tenant, created_at_us, key);
