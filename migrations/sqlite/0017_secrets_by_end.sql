-- Each new secret removes the expired ones, without a search of the whole table.

CREATE INDEX upstream_secrets_by_end ON upstream_secrets (expires_at_us);
