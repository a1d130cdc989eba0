ALTER TABLE truth ADD COLUMN task TEXT DEFAULT '' NOT NULL;

ALTER TABLE truth ADD COLUMN model TEXT DEFAULT '' NOT NULL;

ALTER TABLE truth ADD COLUMN owner TEXT DEFAULT 'default' NOT NULL;

CREATE TABLE other_truth (
    seq INTEGER NOT NULL,
    truth_id INTEGER NOT NULL,
    CONSTRAINT pk_other_truth PRIMARY KEY (seq)
) STRICT;

DROP INDEX ix_truth_join_on_value_id;

CREATE INDEX ix_truth_join_on_value_owner_task_model_id ON truth (join_on, value, owner, task, model, id);
