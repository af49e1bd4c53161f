-- A statement raises the version of the configuration once, and only if it changed a row. Before, the removal of a tenant
-- raised it for each of its keys and revocations. With thousands of them that took longer than a statement may.

-- `changed` holds the rows that the statement inserted, updated or deleted.
CREATE FUNCTION count_changed_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM changed) THEN
        UPDATE config_version SET version = version + 1;
    END IF;
    RETURN NULL;
END $$;

-- A trigger with such rows is for one kind of statement. `tenants` comes last: a change of a row below a tenant locks its own
-- table first, and then that of tenants.
DO $$
DECLARE
    counted TEXT;
BEGIN
    FOREACH counted IN ARRAY ARRAY['api_keys', 'backends', 'held_breakers', 'policies', 'operators', 'revocations', 'token_issuers',
                                   'catalog_documents', 'tenants'] LOOP
        EXECUTE format('DROP TRIGGER counts_changes ON %I', counted);
        EXECUTE format('CREATE TRIGGER counts_inserts AFTER INSERT ON %I REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_changed_rows()', counted);
        EXECUTE format('CREATE TRIGGER counts_updates AFTER UPDATE ON %I REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_changed_rows()', counted);
        EXECUTE format('CREATE TRIGGER counts_deletes AFTER DELETE ON %I REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_changed_rows()', counted);
    END LOOP;
END $$;
