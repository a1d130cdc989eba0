CREATE TABLE new_model (
    id INTEGER NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, sha256 TEXT NOT NULL, task TEXT NOT NULL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_model PRIMARY KEY (id),
    CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team)
) STRICT;

INSERT INTO new_model (id, name, version, sha256, task) SELECT id, name, version, sha256, task FROM model;

DROP TABLE model;

ALTER TABLE new_model RENAME TO model;

CREATE TABLE new_retention (
    model TEXT NOT NULL,
    inputs_days REAL,
    inferences_days REAL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_retention PRIMARY KEY (model, team)
) STRICT;

INSERT INTO new_retention (model, inputs_days, inferences_days)
    SELECT model, inputs_days, inferences_days FROM retention;

DROP TABLE retention;

ALTER TABLE new_retention RENAME TO retention;
