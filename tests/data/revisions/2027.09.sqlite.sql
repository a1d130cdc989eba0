CREATE TABLE repeated_id (
    seq INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    CONSTRAINT pk_repeated_id PRIMARY KEY (seq)
) STRICT;

CREATE INDEX ix_repeated_id_first_seq ON repeated_id (first_seq);

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.09', '2027.07');
