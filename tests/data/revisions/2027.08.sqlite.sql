CREATE TABLE traffic (
    model TEXT NOT NULL,
    rule TEXT NOT NULL,
    changed_ms INTEGER NOT NULL,
    changed_by TEXT NOT NULL,
    CONSTRAINT pk_traffic PRIMARY KEY (model)
) STRICT;

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.08', '2027.07');
