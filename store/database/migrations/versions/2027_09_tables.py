"""The tables of release 0.2.0, whose databases are the oldest that are brought up."""

import re

from alembic import op

revision = "2027.09"
down_revision = None
oldest = "2027.09"

_TYPES = {
    "SERIAL": ("INTEGER", "SERIAL"),
    "BIGINT": ("INTEGER", "BIGINT"),
    "DOUBLE": ("REAL", "DOUBLE PRECISION"),
    "NAME": ("TEXT", 'TEXT COLLATE "C"'),
    "JSON": ("TEXT", "JSONB"),
    "BYTES": ("BLOB", "BYTEA"),
    "OF_ROWS": ("STRICT", ""),
    "BY_KEY": ("WITHOUT ROWID, STRICT", ""),
    "PER_MONTH": ("", "PARTITION BY RANGE (seq)"),
    "WITH_SCORE": ("", "INCLUDE (score)"),
}
"""What stands in braces, in SQLite and in PostgreSQL; a `NAME` is compared by code point."""

_TABLES = """
CREATE TABLE model (
    id {SERIAL} NOT NULL, name {NAME} NOT NULL, version {NAME} NOT NULL, sha256 {NAME} NOT NULL,
    task {NAME} NOT NULL,
    team {NAME} DEFAULT '' NOT NULL,    -- of the keys that made the inferences, empty for none
    CONSTRAINT pk_model PRIMARY KEY (id),
    CONSTRAINT uq_model_name_version_sha256_task_team UNIQUE (name, version, sha256, task, team)
) {OF_ROWS};
CREATE TABLE label (
    id {SERIAL} NOT NULL, name {NAME} NOT NULL,
    team {NAME} DEFAULT '' NOT NULL,    -- of the inferences with the label, empty for none
    CONSTRAINT pk_label PRIMARY KEY (id), CONSTRAINT uq_label_name_team UNIQUE (name, team)
) {OF_ROWS};
CREATE INDEX ix_label_team ON label (team);
CREATE TABLE meta_key (
    id {SERIAL} NOT NULL, path {NAME} NOT NULL,
    type INTEGER NOT NULL,              -- a `KeyType`
    team {NAME} DEFAULT '' NOT NULL,    -- of the inferences with the key, empty for none
    CONSTRAINT pk_meta_key PRIMARY KEY (id), CONSTRAINT uq_meta_key_path_type_team UNIQUE (path, type, team)
) {OF_ROWS};
CREATE INDEX ix_meta_key_team ON meta_key (team);
CREATE TABLE inference (
    seq {BIGINT} NOT NULL,              -- `quadriga.store.records.ids`, the time too
    request_id {NAME} NOT NULL, image_no INTEGER NOT NULL, model_id INTEGER NOT NULL,
    action {NAME} NOT NULL, status INTEGER DEFAULT '200' NOT NULL, latency_us {BIGINT} NOT NULL,
    input_name TEXT NOT NULL, input_hash {NAME}, input_width INTEGER, input_height INTEGER,
    input_mime TEXT, input_bytes {BIGINT}, input_kept INTEGER NOT NULL,
    prediction_count INTEGER,           -- NULL where predictions are no list of objects
    predictions TEXT NOT NULL,          -- JSON, as answered
    meta TEXT NOT NULL,                 -- JSON, as given, with later changes
    meta_flat {JSON},                   -- `quadriga.store.records.metadata.index`, NULL in SQLite where it equals `meta`
    standard TEXT DEFAULT '{{}}' NOT NULL, -- JSON, the engine's
    CONSTRAINT pk_inference PRIMARY KEY (seq)
) {PER_MONTH} {OF_ROWS};
CREATE INDEX ix_inference_input_hash ON inference (input_hash) WHERE input_hash IS NOT NULL;
CREATE INDEX ix_inference_model_id_seq ON inference (model_id, seq);
CREATE INDEX ix_inference_request_id ON inference (request_id);
CREATE TABLE meta_num (
    "key" INTEGER NOT NULL,
    val {DOUBLE} NOT NULL,              -- booleans as 0 and 1, presence alone as 0
    seq {BIGINT} NOT NULL, CONSTRAINT pk_meta_num PRIMARY KEY ("key", val, seq)
) {PER_MONTH} {BY_KEY};
CREATE TABLE meta_str (
    "key" INTEGER NOT NULL,
    val {NAME} NOT NULL,                -- the first `INDEXED_CHARACTERS` characters
    seq {BIGINT} NOT NULL, CONSTRAINT pk_meta_str PRIMARY KEY ("key", val, seq)
) {PER_MONTH} {BY_KEY};
CREATE TABLE pred (
    label INTEGER NOT NULL,
    band INTEGER NOT NULL,              -- of `score`, see `quadriga.store.database.schema.band`
    seq {BIGINT} NOT NULL,
    score {DOUBLE} NOT NULL,            -- the label's best, -inf where none has a score
    worst {DOUBLE} NOT NULL,            -- the label's worst, as `score`
    n INTEGER NOT NULL,                 -- predictions with the label
    CONSTRAINT pk_pred PRIMARY KEY (label, band, seq) {WITH_SCORE}
) {PER_MONTH} {BY_KEY};
CREATE INDEX ix_pred_seq_label_score ON pred (seq, label, score);
CREATE TABLE signal (
    seq {BIGINT} NOT NULL,
    picture {BYTES},                    -- float32, little-endian
    embedding {BYTES},                  -- float16, little-endian
    space TEXT,                         -- of the embedding, those of two are not compared
    CONSTRAINT pk_signal PRIMARY KEY (seq)
) {PER_MONTH} {OF_ROWS};
CREATE TABLE rollup (
    model_id INTEGER NOT NULL,
    minute {BIGINT} NOT NULL,           -- since 1970
    n {BIGINT} NOT NULL,
    errors {BIGINT} NOT NULL,           -- of `n`, those with a status of 500 or more
    latency TEXT NOT NULL,              -- JSON, bucket of `quadriga.store.database.rollups` to number
    labels TEXT NOT NULL,               -- JSON, label id to number of predictions
    kept_bytes {BIGINT} NOT NULL,       -- of inputs kept, 0 where there are none
    CONSTRAINT pk_rollup PRIMARY KEY (model_id, minute)
) {BY_KEY};
CREATE INDEX ix_rollup_model_id_minute_kept_bytes ON rollup (model_id, minute, kept_bytes)
    WHERE kept_bytes > 0;
CREATE TABLE metadata_change (
    id {BIGINT} NOT NULL,               -- of the change, its time
    seq {BIGINT} NOT NULL,
    change TEXT NOT NULL,               -- JSON of a `MetadataChange`
    "before" TEXT NOT NULL,             -- JSON, the metadata until then
    CONSTRAINT pk_metadata_change PRIMARY KEY (id)
) {OF_ROWS};
CREATE INDEX ix_metadata_change_seq ON metadata_change (seq);
CREATE TABLE truth (
    id {BIGINT} NOT NULL,               -- of the statement, its time
    join_on {NAME} NOT NULL,            -- `TruthStatement.join`
    value {NAME} NOT NULL, source TEXT NOT NULL,
    annotations TEXT,                   -- JSON, NULL takes the truth away
    task {NAME} DEFAULT '' NOT NULL, model {NAME} DEFAULT '' NOT NULL,
    owner {NAME} DEFAULT 'default' NOT NULL,
    review {NAME} DEFAULT '' NOT NULL, CONSTRAINT pk_truth PRIMARY KEY (id)
) {OF_ROWS};
CREATE INDEX ix_truth_join_on_value_owner_task_model_id ON truth (join_on, value, owner, task, model, id);
CREATE TABLE ground_truth (
    seq {BIGINT} NOT NULL,
    truth_id {BIGINT} NOT NULL,         -- the latest that holds
    CONSTRAINT pk_ground_truth PRIMARY KEY (seq)
) {OF_ROWS};
CREATE INDEX ix_ground_truth_truth_id ON ground_truth (truth_id);
CREATE TABLE other_truth (
    seq {BIGINT} NOT NULL,
    truth_id {BIGINT} NOT NULL,         -- the latest of another task or model, where none holds
    CONSTRAINT pk_other_truth PRIMARY KEY (seq)
) {OF_ROWS};
CREATE TABLE repeated_id (
    seq {BIGINT} NOT NULL,              -- id that a client was answered, of no inference
    first_seq {BIGINT} NOT NULL,        -- id of the inference that is stored
    CONSTRAINT pk_repeated_id PRIMARY KEY (seq)
) {OF_ROWS};
CREATE INDEX ix_repeated_id_first_seq ON repeated_id (first_seq);
CREATE TABLE feedback (
    id {BIGINT} NOT NULL,               -- its time
    seq {BIGINT} NOT NULL, kind TEXT NOT NULL, value {DOUBLE}, comment TEXT NOT NULL,
    source TEXT NOT NULL, CONSTRAINT pk_feedback PRIMARY KEY (id)
) {OF_ROWS};
CREATE INDEX ix_feedback_seq ON feedback (seq);
CREATE TABLE retention (
    model TEXT NOT NULL,                -- name, of all versions
    inputs_days {DOUBLE},               -- NULL is for ever
    inferences_days {DOUBLE},           -- NULL is for ever
    team {NAME} DEFAULT '' NOT NULL,    -- whose inferences the rule is for, empty for those of every team
    CONSTRAINT pk_retention PRIMARY KEY (model, team)
) {OF_ROWS};
CREATE TABLE journal_offset (
    segment {NAME} NOT NULL,            -- with the id of its journal before it
    "offset" {BIGINT} NOT NULL,         -- bytes whose records are committed
    CONSTRAINT pk_journal_offset PRIMARY KEY (segment)
) {BY_KEY};
CREATE TABLE worker_number (
    number INTEGER NOT NULL,            -- part of the ids that a worker gives out
    owner TEXT NOT NULL,                -- id of the journal in the data folder of its server
    place TEXT NOT NULL,                -- machine and inode of that folder; empty while no server runs on it
    host TEXT NOT NULL,                 -- name of the machine, for messages
    seen_ms {BIGINT} NOT NULL,          -- last sign of its server, by the clock of the database
    CONSTRAINT pk_worker_number PRIMARY KEY (number)
) {OF_ROWS};
CREATE TABLE access_key (
    id TEXT NOT NULL,                   -- part of the key; names it in lists and logs
    hash TEXT NOT NULL,                 -- SHA-256 of the whole key, in hexadecimal digits
    name TEXT NOT NULL,                 -- for people
    roles TEXT NOT NULL,                -- separated by commas
    team TEXT NOT NULL,                 -- empty for none
    models TEXT NOT NULL,               -- patterns separated by commas; empty for all models
    created_ms {BIGINT} NOT NULL,
    expires_ms {BIGINT},                -- null: never
    revoked_ms {BIGINT},
    used_ms {BIGINT},                   -- last use, to a minute
    limits TEXT DEFAULT '' NOT NULL,    -- of the key, as one text; empty for the server's
    CONSTRAINT pk_access_key PRIMARY KEY (id)
) {OF_ROWS};
CREATE TABLE traffic (
    model TEXT NOT NULL,                -- name of the model, as its folder has it
    rule TEXT NOT NULL,                 -- shares and sticky key, as JSON
    changed_ms {BIGINT} NOT NULL,       -- by the clock of the database
    changed_by TEXT NOT NULL,           -- name of the key
    CONSTRAINT pk_traffic PRIMARY KEY (model)
) {OF_ROWS};
CREATE TABLE schema_compatibility (
    revision TEXT NOT NULL,
    oldest TEXT NOT NULL,               -- revision that code must know to run on this one
    CONSTRAINT pk_schema_compatibility PRIMARY KEY (revision)
) {OF_ROWS}
"""
_ROW = f"INSERT INTO schema_compatibility (revision, oldest) VALUES ('{revision}', '{oldest}')"


def upgrade() -> None:
    """Create all tables."""
    column = 0 if op.get_context().dialect.name == "sqlite" else 1
    types = {name: by_database[column] for name, by_database in _TYPES.items()}
    for statement in re.sub(r" *--.*", "", _TABLES).format_map(types).split(";"):
        op.execute(statement)
    op.execute(_ROW)
