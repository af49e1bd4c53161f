-- The broker's registrations as an OAuth client, and the issuers of its configured credentials, end with their backend.
-- Their names begin with it.

CREATE OR REPLACE FUNCTION end_upstream_of_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM upstream_grants WHERE tenant = OLD.tenant AND backend = OLD.backend;
    DELETE FROM upstream_secrets WHERE kind = 'client' AND tenant = OLD.tenant AND starts_with(name, OLD.backend || ' ');
    RETURN NULL;
END
$$;
