CREATE TABLE repeated_id (
    seq BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    CONSTRAINT pk_repeated_id PRIMARY KEY (seq)
);

CREATE INDEX ix_repeated_id_first_seq ON repeated_id (first_seq);

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.09', '2027.07');
