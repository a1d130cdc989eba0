CREATE TABLE model (
    id INTEGER NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, sha256 TEXT NOT NULL,
    task TEXT NOT NULL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_model PRIMARY KEY (id),
    CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team)
) STRICT;

CREATE TABLE label (
    id INTEGER NOT NULL, name TEXT NOT NULL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_label PRIMARY KEY (id), CONSTRAINT uq_label_name_team UNIQUE (name, team)
) STRICT;

CREATE INDEX ix_label_team ON label (team);

CREATE TABLE meta_key (
    id INTEGER NOT NULL, path TEXT NOT NULL,
    type INTEGER NOT NULL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_meta_key PRIMARY KEY (id), CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team)
) STRICT;

CREATE INDEX ix_meta_key_team ON meta_key (team);

CREATE TABLE inference (
    seq INTEGER NOT NULL,
    request_id TEXT NOT NULL, image_no INTEGER NOT NULL, model_id INTEGER NOT NULL,
    action TEXT NOT NULL, status INTEGER DEFAULT '200' NOT NULL, latency_us INTEGER NOT NULL,
    input_name TEXT NOT NULL, input_hash TEXT, input_width INTEGER, input_height INTEGER,
    input_mime TEXT, input_bytes INTEGER, input_kept INTEGER NOT NULL,
    prediction_count INTEGER,
    predictions TEXT NOT NULL,
    meta TEXT NOT NULL,
    meta_flat TEXT,
    standard TEXT DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_inference PRIMARY KEY (seq)
)  STRICT;

CREATE INDEX ix_inference_input_hash ON inference (input_hash) WHERE input_hash IS NOT NULL;

CREATE INDEX ix_inference_model_id_seq ON inference (model_id, seq);

CREATE INDEX ix_inference_request_id ON inference (request_id);

CREATE TABLE meta_num (
    "key" INTEGER NOT NULL,
    val REAL NOT NULL,
    seq INTEGER NOT NULL, CONSTRAINT pk_meta_num PRIMARY KEY ("key", val, seq)
)  WITHOUT ROWID, STRICT;

CREATE TABLE meta_str (
    "key" INTEGER NOT NULL,
    val TEXT NOT NULL,
    seq INTEGER NOT NULL, CONSTRAINT pk_meta_str PRIMARY KEY ("key", val, seq)
)  WITHOUT ROWID, STRICT;

CREATE TABLE pred (
    label INTEGER NOT NULL,
    band INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    score REAL NOT NULL,
    worst REAL NOT NULL,
    n INTEGER NOT NULL,
    CONSTRAINT pk_pred PRIMARY KEY (label, band, seq) 
)  WITHOUT ROWID, STRICT;

CREATE INDEX ix_pred_seq_label_score ON pred (seq, label, score);

CREATE TABLE signal (
    seq INTEGER NOT NULL,
    picture BLOB,
    embedding BLOB,
    space TEXT,
    CONSTRAINT pk_signal PRIMARY KEY (seq)
)  STRICT;

CREATE TABLE rollup (
    model_id INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    n INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    latency TEXT NOT NULL,
    labels TEXT NOT NULL,
    kept_bytes INTEGER NOT NULL,
    CONSTRAINT pk_rollup PRIMARY KEY (model_id, minute)
) WITHOUT ROWID, STRICT;

CREATE INDEX ix_rollup_model_id_minute_kept_bytes ON rollup (model_id, minute, kept_bytes)
    WHERE kept_bytes > 0;

CREATE TABLE metadata_change (
    id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    change TEXT NOT NULL,
    "before" TEXT NOT NULL,
    CONSTRAINT pk_metadata_change PRIMARY KEY (id)
) STRICT;

CREATE INDEX ix_metadata_change_seq ON metadata_change (seq);

CREATE TABLE truth (
    id INTEGER NOT NULL,
    join_on TEXT NOT NULL,
    value TEXT NOT NULL, source TEXT NOT NULL,
    annotations TEXT,
    task TEXT DEFAULT '' NOT NULL, model TEXT DEFAULT '' NOT NULL,
    owner TEXT DEFAULT 'default' NOT NULL,
    review TEXT DEFAULT '' NOT NULL, CONSTRAINT pk_truth PRIMARY KEY (id)
) STRICT;

CREATE INDEX ix_truth_join_on_value_owner_task_model_id ON truth (join_on, value, owner, task, model, id);

CREATE TABLE ground_truth (
    seq INTEGER NOT NULL,
    truth_id INTEGER NOT NULL,
    CONSTRAINT pk_ground_truth PRIMARY KEY (seq)
) STRICT;

CREATE INDEX ix_ground_truth_truth_id ON ground_truth (truth_id);

CREATE TABLE other_truth (
    seq INTEGER NOT NULL,
    truth_id INTEGER NOT NULL,
    CONSTRAINT pk_other_truth PRIMARY KEY (seq)
) STRICT;

CREATE TABLE repeated_id (
    seq INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    CONSTRAINT pk_repeated_id PRIMARY KEY (seq)
) STRICT;

CREATE INDEX ix_repeated_id_first_seq ON repeated_id (first_seq);

CREATE TABLE feedback (
    id INTEGER NOT NULL,
    seq INTEGER NOT NULL, kind TEXT NOT NULL, value REAL, comment TEXT NOT NULL,
    source TEXT NOT NULL, CONSTRAINT pk_feedback PRIMARY KEY (id)
) STRICT;

CREATE INDEX ix_feedback_seq ON feedback (seq);

CREATE TABLE retention (
    model TEXT NOT NULL,
    inputs_days REAL,
    inferences_days REAL,
    team TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_retention PRIMARY KEY (model, team)
) STRICT;

CREATE TABLE journal_offset (
    segment TEXT NOT NULL,
    "offset" INTEGER NOT NULL,
    CONSTRAINT pk_journal_offset PRIMARY KEY (segment)
) WITHOUT ROWID, STRICT;

CREATE TABLE worker_number (
    number INTEGER NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,
    host TEXT NOT NULL,
    seen_ms INTEGER NOT NULL,
    CONSTRAINT pk_worker_number PRIMARY KEY (number)
) STRICT;

CREATE TABLE access_key (
    id TEXT NOT NULL,
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    roles TEXT NOT NULL,
    team TEXT NOT NULL,
    models TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER,
    used_ms INTEGER,
    limits TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_access_key PRIMARY KEY (id)
) STRICT;

CREATE TABLE traffic (
    model TEXT NOT NULL,
    rule TEXT NOT NULL,
    changed_ms INTEGER NOT NULL,
    changed_by TEXT NOT NULL,
    CONSTRAINT pk_traffic PRIMARY KEY (model)
) STRICT;

CREATE TABLE schema_compatibility (
    revision TEXT NOT NULL,
    oldest TEXT NOT NULL,
    CONSTRAINT pk_schema_compatibility PRIMARY KEY (revision)
) STRICT;

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.09', '2027.09');
