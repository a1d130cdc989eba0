ALTER TABLE truth ADD COLUMN task TEXT COLLATE "C" DEFAULT '' NOT NULL;

ALTER TABLE truth ADD COLUMN model TEXT COLLATE "C" DEFAULT '' NOT NULL;

ALTER TABLE truth ADD COLUMN owner TEXT COLLATE "C" DEFAULT 'default' NOT NULL;

CREATE TABLE other_truth (
    seq BIGINT NOT NULL,
    truth_id BIGINT NOT NULL,
    CONSTRAINT pk_other_truth PRIMARY KEY (seq)
);

DROP INDEX ix_truth_join_on_value_id;

CREATE INDEX ix_truth_join_on_value_owner_task_model_id ON truth (join_on, value, owner, task, model, id);
