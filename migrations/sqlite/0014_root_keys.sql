-- The root key of all other keys, once for each root secret that opens it.

CREATE TABLE root_keys (
    -- Order of the secrets: a later one has a higher number.
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Name of the root secret, derived from it.
    secret   BLOB NOT NULL UNIQUE CHECK (length(secret) = 16),
    -- Number of the newest seal key in `sealed`.
    seal_key INTEGER NOT NULL,
    -- The root key and the keys of sealed values, sealed with the root secret.
    sealed   BLOB NOT NULL
) STRICT;
