-- An operator's list of the tasks of one tenant, without a search of the whole table.

CREATE INDEX tasks_by_tenant ON tasks (tenant, created_at_us, task);
