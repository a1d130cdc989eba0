ALTER TABLE label ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;

ALTER TABLE label DROP CONSTRAINT uq_label_name;

ALTER TABLE label ADD CONSTRAINT uq_label_name_team UNIQUE (name, team);

CREATE INDEX ix_label_team ON label (team);

ALTER TABLE meta_key ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;

ALTER TABLE meta_key DROP CONSTRAINT uq_meta_key_path_type;

ALTER TABLE meta_key ADD CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team);

CREATE INDEX ix_meta_key_team ON meta_key (team);
