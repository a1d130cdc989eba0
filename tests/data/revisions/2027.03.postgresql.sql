CREATE TABLE access_key (
    id TEXT NOT NULL,
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    roles TEXT NOT NULL,
    team TEXT NOT NULL,
    models TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT,
    used_ms BIGINT,
    CONSTRAINT pk_access_key PRIMARY KEY (id)
);
