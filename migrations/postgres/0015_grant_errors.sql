-- Reason why the last renewal of a grant's token failed: 'invalid_grant', 'refused' or 'unavailable'.

ALTER TABLE upstream_grants ADD COLUMN last_error TEXT;
