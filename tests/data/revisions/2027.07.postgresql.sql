CREATE TABLE schema_compatibility (
    revision TEXT NOT NULL,
    oldest TEXT NOT NULL,
    CONSTRAINT pk_schema_compatibility PRIMARY KEY (revision)
);

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.07', '2027.07');
