CREATE TABLE access_key (
    id TEXT NOT NULL,
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    roles TEXT NOT NULL,
    team TEXT NOT NULL,
    models TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER,
    used_ms INTEGER,
    CONSTRAINT pk_access_key PRIMARY KEY (id)
) STRICT;
