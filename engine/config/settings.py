"""Every setting of the server, with its default and its description; `quadriga.engine.config.settings_reading` reads them."""

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import quote

from msgspec import Meta

from quadriga.engine.config.server_settings import SECRET, ServerSettings
from quadriga.store.redaction import HIDDEN, without_secrets

PREFIX = "QUADRIGA_"

SESSION_HOURS = 8.0
"""Hours after which a session ends: a working day."""

Durability = Literal["memory", "process", "power", "database"]
"""What an acknowledged inference survives: nothing, a crash of the process, a power cut, or it is committed."""

FullPolicy = Literal["block", "shed", "fail"]
"""What happens to an inference when the journal is full."""


class Settings(ServerSettings, frozen=True, forbid_unknown_fields=True):
    """All settings of one server; each description is also the help text of its flag."""

    data: Annotated[
        str,
        Meta(description="Folder of journal, database and images; removing it resets everything."),
    ] = "data"
    database: Annotated[
        str,
        Meta(
            pattern=r"^((sqlite(\+pysqlite)?:///|postgresql(\+psycopg)?://).+)?$",
            extra=SECRET,
            description="SQLAlchemy URL of the store; default: store.db in the data folder.",
        ),
    ] = ""
    clickhouse: Annotated[
        str,
        Meta(
            pattern=r"^(https?://.+)?$",
            extra=SECRET,
            description="URL of a ClickHouse database that also receives every stored record.",
        ),
    ] = ""
    blobs: Annotated[
        str,
        Meta(
            pattern=r"^((s3|gs|az)://.+|(?!.*://).*)$",
            extra=SECRET,
            description="Folder of input images, or s3://, gs:// or az:// with a bucket; default: blobs in the data folder.",
        ),
    ] = ""
    extensions: Annotated[
        str,
        Meta(
            description="Folder of Python modules that model.toml may name as module:attribute; installed modules take precedence."
        ),
    ] = ""
    workers: Annotated[
        int, Meta(ge=1, le=64, description="Worker processes; each loads every model.")
    ] = 1
    threads: Annotated[
        int,
        Meta(ge=0, le=256, description="Threads of a worker that run requests; 0: one per core."),
    ] = 0
    store: Annotated[bool, Meta(description="Store inferences.")] = True
    durability: Annotated[
        Durability,
        Meta(
            description="What an acknowledged inference survives unless the model says otherwise: memory (nothing), process (a crash of the process), power (a power cut), database (committed)."
        ),
    ] = "process"
    journal_full: Annotated[
        FullPolicy,
        Meta(
            description="What happens to an inference when the journal is full, unless the model says otherwise: block (wait), shed (answer without storing) or fail (refuse)."
        ),
    ] = "fail"
    journal_hard_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Unread journal bytes above which the journal is full; 0: 1 GiB or 10 % of the free disk, whichever is less.",
        ),
    ] = 0
    max_input_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of stored input images; above, the oldest are removed. 0: no limit.",
        ),
    ] = 0
    signals_per_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Images per second, model and worker whose drift signals are stored, chosen at random; 0: none.",
        ),
    ] = 4.0
    score_threshold: Annotated[
        float | None,
        Meta(
            description="Lowest score of an answered detection, unless the model or the request says otherwise."
        ),
    ] = None
    protocol: Annotated[
        Literal["chariot-v2-kserve", "chariot-v2"],
        Meta(
            description="Protocol that Chariot expects, chariot-v2-kserve or chariot-v2; both are always answered."
        ),
    ] = "chariot-v2-kserve"
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Largest request body; HTTP refuses more with 413, gRPC with RESOURCE_EXHAUSTED.",
        ),
    ] = 64 * 1024 * 1024
    max_inflight_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Bytes of the request bodies that a worker holds at once, at least max_body_bytes; more are refused with 503.",
        ),
    ] = 512 * 1024 * 1024
    max_pixels: Annotated[
        int, Meta(ge=1, description="Largest image in pixels; more are refused before decoding.")
    ] = 50_000_000
    max_queue: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests to one model that may wait in a worker; more are refused with 503.",
        ),
    ] = 256
    max_wait_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Seconds that a request may be expected to wait for a thread; if it would wait longer, it is refused with 503.",
        ),
    ] = 10.0
    request_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds from the arrival of a request to its answer; then it is stopped and answered with 503. Clients may ask for less.",
        ),
    ] = 60.0
    max_images: Annotated[
        int, Meta(ge=1, description="Images, or rows of features, allowed in one request.")
    ] = 1000
    max_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="Tokens that a request may generate, in all its images, prompts and beams.",
        ),
    ] = 65_536
    not_finite: Annotated[
        Literal["token", "null", "error"],
        Meta(
            description="How JSON answers write NaN and infinities: token (NaN, as Triton and TF Serving write it), null, or error."
        ),
    ] = "token"
    grpc_connection_age_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds after which a gRPC client is asked to open a new connection; running calls are finished. 0: never.",
        ),
    ] = 0.0
    body_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Seconds within which the body of a request must arrive, and for which one that goes on may stand still; or the message of a gRPC call.",
        ),
    ] = 30.0
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            description="HTTP connections of a worker, and gRPC connections and calls; more are refused, but a new connection takes the place of an idle one (over gRPC: of a caller without a key). Fewer if the limit of open files is low.",
        ),
    ] = 1000
    bulk_folder: Annotated[
        str,
        Meta(
            description="Folder whose images clients may run models on as jobs, by POST /api/inferences/bulk; default: none."
        ),
    ] = ""
    job_days: Annotated[
        float, Meta(ge=0, le=36500, description="Days after which a finished job is removed.")
    ] = 7.0
    webhook_hosts: Annotated[
        str,
        Meta(
            description="Hosts that alerts may be sent to: names, *.example.org, addresses, networks such as 10.0.0.0/8, and public for every public address, separated by commas; default: public."
        ),
    ] = ""
    strict_readiness: Annotated[
        bool,
        Meta(description="Not ready if a model failed to load; otherwise only while models load."),
    ] = True
    model_control: Annotated[bool, Meta(description="Allow clients to load and unload models.")] = (
        True
    )
    isolation: Annotated[
        Literal["none", "clients", "all"],
        Meta(
            description="Models that run in a process of their own unless model.toml says otherwise: none, those whose files clients sent (clients), or all."
        ),
    ] = "clients"
    load_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds within which the warm-up of a model must end, and a model that a client loads must be tried.",
        ),
    ] = 60.0
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="Seconds to go on serving after SIGTERM, while readiness says no.",
        ),
    ] = 0.3
    exit_timeout_s: Annotated[
        float,
        Meta(ge=1, le=3600, description="Seconds after SIGTERM until child processes are killed."),
    ] = 30.0

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the settings for representations, secrets without what is secret."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return [
            (name, shown_secret(value) if name in secret_names() else value)
            for name, value in values.items()
        ]

    def __repr__(self) -> str:
        """Return all settings, secrets without what is secret."""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @property
    def secrets(self) -> frozenset[str]:
        """Values of the secret settings, for texts that have to do without them."""
        return frozenset(filter(None, (getattr(self, name) for name in secret_names())))

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the store."""
        path = quote(str(Path(self.data).absolute() / "store.db"), safe="/ ")
        return self.database or f"sqlite:///{path}"

    @property
    def journal_directory(self) -> Path:
        """Folder where workers append records and the writer reads them."""
        return Path(self.data) / "journal"

    @property
    def audit_directory(self) -> Path:
        """Folder of the audit log."""
        return Path(self.data) / "audit"

    @property
    def jobs_directory(self) -> Path:
        """Folder with one folder per job."""
        return Path(self.data) / "jobs"

    @property
    def baselines_directory(self) -> Path:
        """Folder with one folder of baselines per model."""
        return Path(self.data) / "baselines"

    @property
    def views_directory(self) -> Path:
        """Folder of saved views."""
        return Path(self.data) / "views"

    @property
    def drift_directory(self) -> Path:
        """Folder of drift schedules, their history, and undelivered alerts."""
        return Path(self.data) / "drift"

    @property
    def evaluation_directory(self) -> Path:
        """Folder of evaluation schedules, their history, and undelivered alerts."""
        return Path(self.data) / "evaluation"

    @property
    def erasures_directory(self) -> Path:
        """Folder of the receipts of erasures."""
        return Path(self.data) / "erasures"

    @property
    def archives_directory(self) -> Path:
        """Folder of the unpacked archives of models."""
        return Path(self.data) / "archives"

    @property
    def model_cache_directory(self) -> Path:
        """Folder of the models of object stores."""
        return Path(self.model_cache or Path(self.data) / "model-cache")

    @property
    def blob_location(self) -> str:
        """Folder or URL of the input images."""
        return self.blobs or str(Path(self.data) / "blobs")

    @property
    def rebuild_file(self) -> Path:
        """File with the progress of a rebuild of the store."""
        return Path(self.data) / "rebuild.progress"

    @property
    def thread_count(self) -> int:
        """Threads of a worker that run requests."""
        return self.threads or len(os.sched_getaffinity(0))


def descriptions() -> dict[str, str]:
    """Return the help text of every setting, by name."""
    fields = get_type_hints(Settings, include_extras=True)
    return {name: field.__metadata__[0].description for name, field in fields.items()}


@cache
def secret_names() -> frozenset[str]:
    """Return the names of the settings that may hold a secret."""
    fields = get_type_hints(Settings, include_extras=True)
    return frozenset(
        name for name, field in fields.items() if (field.__metadata__[0].extra or {}).get("secret")
    )


def shown_secret(value: Any) -> str:
    """Return a secret as it may be shown: the place of a URL, and nothing of any other value."""
    if not value:
        return ""
    return without_secrets(value) if isinstance(value, str) else HIDDEN


REMOVED = {
    "blob_grace_s": "an image that no inference needs is removed an hour after its arrival",
    "body_bytes_per_s": "each 32 KiB of a body add a second to body_timeout_s",
    "ce_merge": "set the environment variable CE_MERGE",
    "ce_source": "set the environment variable CE_SOURCE",
    "ce_type": "set the environment variable CE_TYPE",
    "client_model_mb": "a model of a client may take 2048 MiB while it is tried; memory_limit_mb of model.toml may say less",
    "event_wait_s": "an event of KServe's logger waits five minutes for its other half",
    "events": "events of KServe's logger wait in the folder events of the data folder",
    "first_worker": "workers take numbers that are free in the database",
    "grpc_compression": "compressed messages are taken, up to max_body_bytes",
    "grpc_stream": "streams answer as Triton's do; a client ends them at an error with the metadata triton_grpc_error: true",
    "hang_timeout_s": "a process without a sign of life is killed after 60 s",
    "header_timeout_s": "headers must be complete within 15 s",
    "job_timeout_s": "a job may run for a day",
    "journal_block_ms": "the policy block waits a second",
    "journal_soft_bytes": "answers tell of the journal's lag from half of journal_hard_bytes on",
    "log_slow_ms": "log_requests chooses the requests that have a line; latencies are in /metrics",
    "max_client_models": "clients may have 16 models loaded from files that they sent",
    "max_job_bytes": "the files of all jobs may take half of the free disk",
    "max_request_pixels": "the images of a request may have 320 million pixels",
    "max_tiles": "the images of a request may have 5,000 tiles",
    "max_waiting_jobs": "100 jobs may wait or run",
    "max_waiting_queries": "32 searches of a worker may wait",
    "presign_s": "a signed URL of an image holds for an hour",
    "query_threads": "a worker runs four searches at once",
    "semantic_score_header": "the header is Quadriga-Semantic-Score",
    "semantic_score_in_parameters": "a request asks for it with store.semantic_score",
    "session_hours": "a session lasts eight hours",
    "trace_endpoint": "set the environment variable OTEL_EXPORTER_OTLP_ENDPOINT",
    "v1_inputs": "`inputs` under /v1 are columns, and a list is answered as `outputs` and as `predictions`",
}
"""Settings of release 0.2.0 that are none any more, and what holds in their place: a server that has one warns and starts."""
