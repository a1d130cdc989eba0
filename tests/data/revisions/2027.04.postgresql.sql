ALTER TABLE model ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;

ALTER TABLE model DROP CONSTRAINT uq_model_name_version_sha256_task;

ALTER TABLE model ADD CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team);

ALTER TABLE retention ADD COLUMN team TEXT COLLATE "C" DEFAULT '' NOT NULL;

ALTER TABLE retention DROP CONSTRAINT pk_retention;

ALTER TABLE retention ADD CONSTRAINT pk_retention PRIMARY KEY (model, team);
