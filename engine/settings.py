"""Every setting of the server, and the one reader of flags, environment and `quadriga.toml`.

The first of these that names a setting decides it: command-line flag, `QUADRIGA_*`, one of Chariot's
engine variables, `quadriga.toml`, default.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quadriga.engine.schema import explain
from quadriga.store.ids import WORKERS

PREFIX = "QUADRIGA_"

Durability = Literal["memory", "process", "power", "database"]
"""What an acknowledged inference has survived: nothing, the process's end, the power's, or it is committed."""

FullPolicy = Literal["block", "shed", "fail"]
"""What becomes of an inference that there is no room for."""

CHARIOT_VARIABLES = {
    "MODEL_DIR": "models",
    "MODEL_PATH": "models",
    "UVICORN_HOST": "host",
    "UVICORN_PORT": "port",
    "WEB_CONCURRENCY": "workers",
    "DEFAULT_SCORE_THRESHOLD": "score_threshold",
    "CHARIOT_INFERENCE_PROTOCOL": "protocol",
    "CE_TYPE": "ce_type",
    "CE_SOURCE": "ce_source",
    "CE_MERGE": "ce_merge",
}
"""What Chariot sets for an engine and KServe for CloudEvents, and the setting that it stands for."""


class SettingsError(ValueError):
    """A setting is unknown or its value does not fit; the message says which and where it came from."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one server; what stands under each is its help text, too."""

    models: str = "models"
    """Folder of model folders, or one model."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """Port of HTTP; 0 takes a free one and prints it."""
    grpc_port: Annotated[int, Meta(ge=-1, le=65535)] = 8081
    """Port of gRPC; 0 takes a free one and prints it, -1 is none."""
    data: str = "data"
    """Folder of journal, database and images; removing it resets everything."""
    database: Annotated[
        str, Meta(pattern=r"^((sqlite(\+pysqlite)?:///|postgresql(\+psycopg)?://).+)?$")
    ] = ""
    """SQLAlchemy URL of the store; default: store.db in the data folder."""
    clickhouse: Annotated[str, Meta(pattern=r"^(https?://.+)?$")] = ""
    """URL of a ClickHouse database that is sent all that is stored, too."""
    blobs: Annotated[str, Meta(pattern=r"^((s3|gs|az)://.+|(?!.*://).*)$")] = ""
    """Where images are kept: a folder, or s3://, gs:// or az:// with a bucket; default: blobs
    in the data folder."""
    blob_grace_s: Annotated[float, Meta(ge=600)] = 3600.0
    """Seconds that an image stays after it came, whatever needs it."""
    presign_s: Annotated[float, Meta(ge=1, le=604800)] = 3600.0
    """Seconds that a signed URL of an image is good."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Worker processes; each loads every model."""
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    """Threads of a worker that run requests; 0: one per core."""
    store: bool = True
    """Keep inferences at all."""
    durability: Durability = "process"
    """What an acknowledged inference has survived, where the model does not say: memory,
    process, power or database."""
    journal_full: FullPolicy = "fail"
    """What becomes of inferences that there is no room for, where the model does not say:
    block, shed or fail."""
    journal_soft_bytes: Annotated[int, Meta(ge=0)] = 0
    """Bytes behind which answers say how far the store is; 0: half the hard limit."""
    journal_hard_bytes: Annotated[int, Meta(ge=0)] = 0
    """Bytes behind which the journal is full; 0: 1 GiB or 10 % of the free disk, whichever is
    less."""
    journal_block_ms: Annotated[int, Meta(ge=0, le=600_000)] = 1000
    """Milliseconds that block waits for room."""
    first_worker: Annotated[int, Meta(ge=0, le=1022)] = 0
    """Number of the first worker in ids; servers that share a database have different
    ranges."""
    max_input_bytes: Annotated[int, Meta(ge=0)] = 0
    """Bytes that kept inputs may take; beyond, the oldest are removed. 0: no limit."""
    signals_per_s: Annotated[float, Meta(ge=0)] = 10.0
    """Images a second of a model, in each worker, of which signals for drift are kept, chosen
    at random; 0: none."""
    score_threshold: float | None = None
    """Detections below are dropped, where neither model nor request says."""
    protocol: Literal["chariot-v2-kserve", "chariot-v2"] = "chariot-v2-kserve"
    """Protocol that Chariot expects, chariot-v2-kserve or chariot-v2; both are always
    answered."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    """Larger request bodies are refused with 413, larger gRPC messages with
    RESOURCE_EXHAUSTED."""
    max_pixels: Annotated[int, Meta(ge=1)] = 50_000_000
    """Larger images are refused at their header."""
    max_queue: Annotated[int, Meta(ge=1)] = 256
    """Requests that may wait or run at once; more are refused with 503."""
    max_images: Annotated[int, Meta(ge=1)] = 1000
    """Images that one request may hold."""
    not_finite: Literal["token", "null", "error"] = "token"
    """What stands for NaN and infinities in JSON answers: NaN as Triton and TF Serving write
    it, null, or an error."""
    v1_inputs: Literal["tf-serving", "kserve"] = "tf-serving"
    """What `inputs` means under /v1: columns answered as `outputs`, or, as in KServe, another
    word for `instances`."""
    ce_type: str = "io.kserve.inference.response"
    """Type of the CloudEvents that answer others."""
    ce_source: str = ""
    """Their source; default: `io.kserve.inference.` and the model's name."""
    ce_merge: bool = False
    """Whether they keep the attributes of the events that they answer."""
    grpc_stream: Literal["triton", "mlserver"] = "triton"
    """Whose messages ModelStreamInfer answers: with Triton's an error is an answer and the
    stream goes on, with MLServer's it ends."""
    header_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """Seconds within which a request's headers must come."""
    job_days: Annotated[float, Meta(ge=0, le=36500)] = 7.0
    """Days after which a job that ended is removed."""
    semantic_score_header: Annotated[
        str,
        Meta(
            pattern=r"^(?![Gg][Rr][Pp][Cc]-)[A-Za-z][A-Za-z0-9_.-]{0,62}[A-Za-z0-9](?<!-[Bb][Ii][Nn])$"
        ),
    ] = "Quadriga-Semantic-Score"
    """Response header that says how like its model's baseline each image is."""
    semantic_score_in_parameters: bool = False
    """Outputs say so too, in `parameters.semantic_score`."""
    strict_readiness: bool = True
    """Not ready while a model has failed to load, not only while one loads."""
    model_control: bool = True
    """Load and unload models when a client asks for it."""
    drain_s: Annotated[float, Meta(ge=0, le=300)] = 0.3
    """Seconds to go on serving after SIGTERM, not ready."""
    exit_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """Seconds after SIGTERM until children are killed."""

    @property
    def database_url(self) -> str:
        """The store's URL."""
        return self.database or f"sqlite:///{Path(self.data).absolute() / 'store.db'}"

    @property
    def journal_directory(self) -> Path:
        """Where workers append and the writer reads."""
        return Path(self.data) / "journal"

    @property
    def jobs_directory(self) -> Path:
        """Where jobs are, each in a folder."""
        return Path(self.data) / "jobs"

    @property
    def baselines_directory(self) -> Path:
        """Where models' baselines are, in a folder each."""
        return Path(self.data) / "baselines"

    @property
    def drift_directory(self) -> Path:
        """Where schedules of drift reports are, their history, and the alerts that wait."""
        return Path(self.data) / "drift"

    @property
    def blob_place(self) -> str:
        """The folder, or the URL, where input images are kept."""
        return self.blobs or str(Path(self.data) / "blobs")

    @property
    def rebuild_file(self) -> Path:
        """Where a rebuild of the store keeps how far it is."""
        return Path(self.data) / "rebuild.progress"

    @property
    def thread_count(self) -> int:
        """Threads of a worker that run requests."""
        return self.threads or len(os.sched_getaffinity(0))


def descriptions() -> dict[str, str]:
    """Give the help text of every setting: what stands under it."""
    source = inspect.getsource(Settings)
    found = re.findall(r'^ {4}(\w+): .*?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Read the settings.

    Args:
        flags: Settings given on the command line, by field name.
        environment: Such as `os.environ`.
        file: A `quadriga.toml`; default: that of `QUADRIGA_CONFIG`, else of the current folder.

    Raises:
        SettingsError: A key is unknown or a value does not fit.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(name: str, value: Any, origin: str) -> None:
        if name not in Settings.__struct_fields__:
            known = ", ".join(Settings.__struct_fields__)
            raise SettingsError(f"{origin}: expected a setting among {known}, got {name!r}")
        values[name], origins[name] = value, origin

    named = file or environment.get(PREFIX + "CONFIG")
    path = Path(named or "quadriga.toml")
    if named or path.exists():
        for name, value in _toml(path).items():
            take(name, value, str(path))
    for variable, name in CHARIOT_VARIABLES.items():
        if environment.get(variable):
            take(name, environment[variable], f"environment variable {variable}")
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable != PREFIX + "CONFIG":
            take(variable.removeprefix(PREFIX).lower(), text, f"environment variable {variable}")
    for name, value in flags.items():
        take(name, value, f"flag --{name.replace('_', '-')}")
    return _converted(values, origins)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"expected a settings file at {path}, got: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: expected TOML, got: {error}") from error


def _converted(values: dict[str, Any], origins: dict[str, str]) -> Settings:
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        text = explain(error, Settings)
        name = text.partition(":")[0]
        raise SettingsError(f"{origins[name]}: {text} (from {values[name]!r})") from error
    if settings.first_worker + settings.workers >= WORKERS:  # the last number is an import's
        raise SettingsError(
            f"expected first_worker and workers to be at most {WORKERS - 1} together, got "
            f"{settings.first_worker} and {settings.workers}"
        )
    return settings
