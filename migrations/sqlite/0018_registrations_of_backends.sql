-- The broker's registrations as an OAuth client, and the issuers of its configured credentials, end with their backend.
-- Their names begin with it.

CREATE TRIGGER upstream_clients_of_backends AFTER DELETE ON backends BEGIN
    DELETE FROM upstream_secrets
    WHERE kind = 'client' AND tenant = OLD.tenant AND substr(name, 1, length(OLD.backend) + 1) = OLD.backend || ' ';
END;
