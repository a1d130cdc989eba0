CREATE TABLE rollup_sum (
    model_id INTEGER NOT NULL,
    period BIGINT NOT NULL,
    minute BIGINT NOT NULL,
    n BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    latency TEXT NOT NULL,
    labels TEXT NOT NULL,
    CONSTRAINT pk_rollup_sum PRIMARY KEY (model_id, period, minute)
);

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.10', '2027.10');
