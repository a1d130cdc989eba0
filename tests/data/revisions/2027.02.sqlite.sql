CREATE TABLE worker_number (
    number INTEGER NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,
    host TEXT NOT NULL,
    seen_ms INTEGER NOT NULL,
    CONSTRAINT pk_worker_number PRIMARY KEY (number)
) STRICT;
