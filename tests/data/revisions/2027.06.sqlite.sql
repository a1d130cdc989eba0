CREATE TABLE new_label (
    id INTEGER NOT NULL, name TEXT NOT NULL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_label PRIMARY KEY (id), CONSTRAINT uq_label_name_team UNIQUE (name, team)
) STRICT;

INSERT INTO new_label (id, name) SELECT id, name FROM label;

DROP TABLE label;

ALTER TABLE new_label RENAME TO label;

CREATE INDEX ix_label_team ON label (team);

CREATE TABLE new_meta_key (
    id INTEGER NOT NULL, path TEXT NOT NULL, type INTEGER NOT NULL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_meta_key PRIMARY KEY (id), CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team)
) STRICT;

INSERT INTO new_meta_key (id, path, type) SELECT id, path, type FROM meta_key;

DROP TABLE meta_key;

ALTER TABLE new_meta_key RENAME TO meta_key;

CREATE INDEX ix_meta_key_team ON meta_key (team);
