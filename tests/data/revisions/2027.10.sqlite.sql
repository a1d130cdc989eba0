CREATE TABLE rollup_sum (
    model_id INTEGER NOT NULL,
    period INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    n INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    latency TEXT NOT NULL,
    labels TEXT NOT NULL,
    CONSTRAINT pk_rollup_sum PRIMARY KEY (model_id, period, minute)
) STRICT, WITHOUT ROWID;

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.10', '2027.10');
