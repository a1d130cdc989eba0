CREATE TABLE model (
    id SERIAL NOT NULL, name TEXT COLLATE "C" NOT NULL, version TEXT COLLATE "C" NOT NULL, sha256 TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    team TEXT COLLATE "C" DEFAULT '' NOT NULL,
    CONSTRAINT pk_model PRIMARY KEY (id),
    CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team)
);

CREATE TABLE label (
    id SERIAL NOT NULL, name TEXT COLLATE "C" NOT NULL,
    team TEXT COLLATE "C" DEFAULT '' NOT NULL,
    CONSTRAINT pk_label PRIMARY KEY (id), CONSTRAINT uq_label_name_team UNIQUE (name, team)
);

CREATE INDEX ix_label_team ON label (team);

CREATE TABLE meta_key (
    id SERIAL NOT NULL, path TEXT COLLATE "C" NOT NULL,
    type INTEGER NOT NULL,
    team TEXT COLLATE "C" DEFAULT '' NOT NULL,
    CONSTRAINT pk_meta_key PRIMARY KEY (id), CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team)
);

CREATE INDEX ix_meta_key_team ON meta_key (team);

CREATE TABLE inference (
    seq BIGINT NOT NULL,
    request_id TEXT COLLATE "C" NOT NULL, image_no INTEGER NOT NULL, model_id INTEGER NOT NULL,
    action TEXT COLLATE "C" NOT NULL, status INTEGER DEFAULT '200' NOT NULL, latency_us BIGINT NOT NULL,
    input_name TEXT NOT NULL, input_hash TEXT COLLATE "C", input_width INTEGER, input_height INTEGER,
    input_mime TEXT, input_bytes BIGINT, input_kept INTEGER NOT NULL,
    prediction_count INTEGER,
    predictions TEXT NOT NULL,
    meta TEXT NOT NULL,
    meta_flat JSONB,
    standard TEXT DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_inference PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);

CREATE INDEX ix_inference_input_hash ON inference (input_hash) WHERE input_hash IS NOT NULL;

CREATE INDEX ix_inference_model_id_seq ON inference (model_id, seq);

CREATE INDEX ix_inference_request_id ON inference (request_id);

CREATE TABLE meta_num (
    "key" INTEGER NOT NULL,
    val DOUBLE PRECISION NOT NULL,
    seq BIGINT NOT NULL, CONSTRAINT pk_meta_num PRIMARY KEY ("key", val, seq)
) PARTITION BY RANGE (seq);

CREATE TABLE meta_str (
    "key" INTEGER NOT NULL,
    val TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL, CONSTRAINT pk_meta_str PRIMARY KEY ("key", val, seq)
) PARTITION BY RANGE (seq);

CREATE TABLE pred (
    label INTEGER NOT NULL,
    band INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    score DOUBLE PRECISION NOT NULL,
    worst DOUBLE PRECISION NOT NULL,
    n INTEGER NOT NULL,
    CONSTRAINT pk_pred PRIMARY KEY (label, band, seq) INCLUDE (score)
) PARTITION BY RANGE (seq);

CREATE INDEX ix_pred_seq_label_score ON pred (seq, label, score);

CREATE TABLE signal (
    seq BIGINT NOT NULL,
    picture BYTEA,
    embedding BYTEA,
    space TEXT,
    CONSTRAINT pk_signal PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);

CREATE TABLE rollup (
    model_id INTEGER NOT NULL,
    minute BIGINT NOT NULL,
    n BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    latency TEXT NOT NULL,
    labels TEXT NOT NULL,
    kept_bytes BIGINT NOT NULL,
    CONSTRAINT pk_rollup PRIMARY KEY (model_id, minute)
);

CREATE INDEX ix_rollup_model_id_minute_kept_bytes ON rollup (model_id, minute, kept_bytes)
    WHERE kept_bytes > 0;

CREATE TABLE metadata_change (
    id BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    change TEXT NOT NULL,
    "before" TEXT NOT NULL,
    CONSTRAINT pk_metadata_change PRIMARY KEY (id)
);

CREATE INDEX ix_metadata_change_seq ON metadata_change (seq);

CREATE TABLE truth (
    id BIGINT NOT NULL,
    join_on TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL, source TEXT NOT NULL,
    annotations TEXT,
    task TEXT COLLATE "C" DEFAULT '' NOT NULL, model TEXT COLLATE "C" DEFAULT '' NOT NULL,
    owner TEXT COLLATE "C" DEFAULT 'default' NOT NULL,
    review TEXT COLLATE "C" DEFAULT '' NOT NULL, CONSTRAINT pk_truth PRIMARY KEY (id)
);

CREATE INDEX ix_truth_join_on_value_owner_task_model_id ON truth (join_on, value, owner, task, model, id);

CREATE TABLE ground_truth (
    seq BIGINT NOT NULL,
    truth_id BIGINT NOT NULL,
    CONSTRAINT pk_ground_truth PRIMARY KEY (seq)
);

CREATE INDEX ix_ground_truth_truth_id ON ground_truth (truth_id);

CREATE TABLE other_truth (
    seq BIGINT NOT NULL,
    truth_id BIGINT NOT NULL,
    CONSTRAINT pk_other_truth PRIMARY KEY (seq)
);

CREATE TABLE repeated_id (
    seq BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    CONSTRAINT pk_repeated_id PRIMARY KEY (seq)
);

CREATE INDEX ix_repeated_id_first_seq ON repeated_id (first_seq);

CREATE TABLE feedback (
    id BIGINT NOT NULL,
    seq BIGINT NOT NULL, kind TEXT NOT NULL, value DOUBLE PRECISION, comment TEXT NOT NULL,
    source TEXT NOT NULL, CONSTRAINT pk_feedback PRIMARY KEY (id)
);

CREATE INDEX ix_feedback_seq ON feedback (seq);

CREATE TABLE retention (
    model TEXT NOT NULL,
    inputs_days DOUBLE PRECISION,
    inferences_days DOUBLE PRECISION,
    team TEXT COLLATE "C" DEFAULT '' NOT NULL,
    CONSTRAINT pk_retention PRIMARY KEY (model, team)
);

CREATE TABLE journal_offset (
    segment TEXT COLLATE "C" NOT NULL,
    "offset" BIGINT NOT NULL,
    CONSTRAINT pk_journal_offset PRIMARY KEY (segment)
);

CREATE TABLE worker_number (
    number INTEGER NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,
    host TEXT NOT NULL,
    seen_ms BIGINT NOT NULL,
    CONSTRAINT pk_worker_number PRIMARY KEY (number)
);

CREATE TABLE access_key (
    id TEXT NOT NULL,
    hash TEXT NOT NULL,
    name TEXT NOT NULL,
    roles TEXT NOT NULL,
    team TEXT NOT NULL,
    models TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT,
    used_ms BIGINT,
    limits TEXT DEFAULT '' NOT NULL,
    CONSTRAINT pk_access_key PRIMARY KEY (id)
);

CREATE TABLE traffic (
    model TEXT NOT NULL,
    rule TEXT NOT NULL,
    changed_ms BIGINT NOT NULL,
    changed_by TEXT NOT NULL,
    CONSTRAINT pk_traffic PRIMARY KEY (model)
);

CREATE TABLE schema_compatibility (
    revision TEXT NOT NULL,
    oldest TEXT NOT NULL,
    CONSTRAINT pk_schema_compatibility PRIMARY KEY (revision)
);

INSERT INTO schema_compatibility (revision, oldest) VALUES ('2027.09', '2027.09');
