"""Settings of the server: one line each, and what reads them from flags, the environment and `quadriga.toml`.

The first of these that has a setting decides it: command-line flag, `QUADRIGA_*`, a variable of Chariot or KServe,
`quadriga.toml`, default. A secret may also stand in a file that `QUADRIGA_<NAME>_FILE` names. Extras declare their settings
beside their code: `[extras.sign_on] issuer` is `QUADRIGA_EXTRAS_SIGN_ON_ISSUER` and `--extras-sign-on-issuer`.
"""

import ipaddress
import logging
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Meta

from quadriga.engine.config import extras
from quadriga.engine.config.schema import explain_validation_error
from quadriga.monitor.watch.webhooks import parse_webhook_hosts
from quadriga.store.keys.key_limits import is_retired, parse_limits, split_limits
from quadriga.store.records.redaction import HIDDEN, without_secrets

PREFIX = "QUADRIGA_"

SESSION_HOURS = 8.0
"""Hours after which a session ends: a working day."""

Durability = Literal["memory", "process", "power", "database"]
"""What an acknowledged inference survives: nothing, a crash of the process, a power cut, or it is committed."""

FullPolicy = Literal["block", "shed", "fail"]
"""What happens to an inference when the journal is full."""

LogFormat = Literal["plain", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

Declared = TypeVar("Declared", bound=msgspec.Struct)

_log = logging.getLogger("quadriga.settings")


class SettingsError(ValueError):
    """Unknown setting or invalid value; the message names the setting and where it was set."""


def described(
    text: str,
    *,
    group: str = "",
    secret: bool = False,
    parse: Callable[[str], object] | None = None,
    example: str = "",
    **bounds: Any,
) -> Meta:
    """Return the description of a setting, for its annotation.

    Args:
        text: Help text of its flag, and its row in the documents.
        group: Section of both; empty for a setting of an extra.
        secret: It may hold a secret: it may be in a file, and is never shown.
        parse: Reads a text with a form of its own; raises ValueError.
        example: A value as a shell reads it in double quotes; errors show it instead of a `pattern`.
        bounds: Limits of the value, as `msgspec.Meta` has them.
    """
    extra = {"group": group, "is_secret": secret, "parse": parse, "example": example}
    return Meta(description=text, extra=extra, **bounds)


def check_models(text: str) -> None:
    """Check that the setting `models` is a folder, or a URL of an object store without secrets.

    Raises:
        ValueError: It is not; the text has nothing of the URL.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        return
    if scheme not in ("s3", "gs", "az"):
        raise ValueError("expected models in a folder, or at s3://, gs:// or az://")
    try:
        parts = urlsplit(text)
        has_secrets = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        has_secrets = True
    if has_secrets or not parts.netloc:
        raise ValueError(
            "expected a bucket and a folder in the URL of models, without user, password and parameters: "
            "credentials come from the environment, such as AWS_ACCESS_KEY_ID"
        )
    if re.search(r"[\s\x00-\x1f]|/\.\.?(/|$)", text):
        raise ValueError("expected a URL of models without spaces and `..`")


def _check_path(text: str) -> None:
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise ValueError(f"expected data to be a path in UTF-8, got {text!r}")


def _parse_key_limits(text: str) -> object:
    return parse_limits(part for part in split_limits(text) if not is_retired(part))


_MAPPED = ipaddress.ip_network("::ffff:0:0/96")


def parse_proxies(text: str) -> list[str]:
    """Parse the setting `trusted_proxies`.

    Returns:
        Networks; those of IPv4 also in the form that a socket of both families gives their addresses (RFC 4291, section
        2.5.5.2).

    Raises:
        ValueError: A part is no address and no network, or the network of all addresses.
    """
    networks = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            network = ipaddress.ip_network(part)
        except ValueError as error:
            raise ValueError(f"expected addresses or networks of proxies, got {error}") from error
        if network.prefixlen == 0 or network.overlaps(_MAPPED):
            raise ValueError(
                f"expected networks of proxies, those of IPv4 in their own form, and not all addresses, got {part}"
            )
        networks.append(str(network))
        if network.version == 4:
            networks.append(
                f"::ffff:{network.network_address}/{_MAPPED.prefixlen + network.prefixlen}"
            )
    return networks


_essential = partial(described, group="Essentials")
_security = partial(described, group="Security")
_limit = partial(described, group="Limits and timeouts")
_storage = partial(described, group="Storage")
_observed = partial(described, group="Observability")
_expert = partial(described, group="Integrations and expert settings")


class _DataPath:
    """A file or folder of the data folder, as an attribute of the settings."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, settings: "Settings", _: type) -> Path:
        return Path(settings.data) / self._name


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one server."""

    # fmt: off
    models: Annotated[str, _essential("Model repository: a folder of models, one model, or an `s3://`, `gs://` or `az://` URL.", parse=check_models)] = "models"
    host: Annotated[str, _essential("Address to listen on. Any but a loopback address requires API keys.")] = "127.0.0.1"
    port: Annotated[int, _essential("HTTP port. 0 picks a free port.", ge=0, le=65535)] = 8080
    grpc_port: Annotated[int, _essential("gRPC port. 0 picks a free port; -1 disables gRPC.", ge=-1, le=65535)] = 8081
    data: Annotated[str, _essential("Data directory: journal, database and images. Deleting it deletes everything.", parse=_check_path)] = "data"
    workers: Annotated[int, _essential("Worker processes. Each loads every model.", ge=1, le=64)] = 1
    threads: Annotated[int, _essential("Inference threads per worker. 0: one per core.", ge=0, le=256)] = 0
    score_threshold: Annotated[float | None, _essential("Default minimum score of detections. Models and requests override it.")] = None
    store: Annotated[bool, _essential("Store inferences.")] = True
    durability: Annotated[Durability, _essential("What a stored inference survives: `memory` (nothing), `process` (a crash), `power` (a power cut) or `database` (committed). Models override it.")] = "process"
    database: Annotated[str, _essential("SQLAlchemy URL. Default: SQLite in the data directory.", secret=True, pattern=r"^((sqlite(\+pysqlite)?:///|postgresql(\+psycopg)?://).+)?$", example="postgresql://quadriga@postgres/quadriga")] = ""
    blobs: Annotated[str, _essential("Image storage: a folder, or an `s3://`, `gs://` or `az://` URL. Default: `blobs` in the data directory.", secret=True, pattern=r"^((s3|gs|az)://.+|(?!.*://).*)$", example="s3://bucket/images")] = ""
    log_level: Annotated[LogLevel, _essential("`debug`, `info`, `warning` or `error`.")] = "info"
    log_format: Annotated[LogFormat, _essential("`plain` or `json`.")] = "plain"

    insecure: Annotated[bool, _security("Disable authentication. Use only behind a gateway that authenticates users.")] = False
    admin_key: Annotated[str, _security("Bootstrap administrator key, `quadriga-NAME.SECRET` with at least 32 random characters. Prefer `QUADRIGA_ADMIN_KEY_FILE`.", secret=True, pattern=r"^(quadriga-[A-Za-z0-9_]{1,64}\.[A-Za-z0-9_-]{32,256})?$", example="quadriga-ops.$(openssl rand -hex 32)")] = ""
    key_limits: Annotated[str, _security("Default rate limits of keys, such as `requests=100/second,concurrency=8`.", parse=_parse_key_limits)] = ""
    open_metrics: Annotated[bool, _security("Serve `/metrics` without a key.")] = False
    tls_certificate: Annotated[str, _security("PEM file with the certificate chain. Enables TLS on both ports; reloaded when it changes.")] = ""
    tls_key: Annotated[str, _security("PEM file with the private key, unencrypted. Default: the certificate file.")] = ""
    tls_client_ca: Annotated[str, _security("PEM file with client CAs. Enables mutual TLS.")] = ""
    public_url: Annotated[str, _security("External base URL, for signed URLs and same-origin checks. Default: taken from the request.", pattern=r"^(https?://[^/?#\s]+(/[^?#\s]*)?)?$", example="https://models.example.org")] = ""
    trusted_proxies: Annotated[str, _security("Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted: addresses or networks, comma-separated.", parse=parse_proxies)] = ""
    allowed_hosts: Annotated[str, _security("Accepted `Host` names, comma-separated, such as `*.example.org`. Default: `localhost` on loopback, any name elsewhere.")] = ""
    cors_origins: Annotated[str, _security("Allowed CORS origins, comma-separated.")] = ""
    webhook_hosts: Annotated[str, _security("Webhook allowlist, comma-separated: hosts, `*.example.org`, addresses, networks, `public`. Default: public addresses.", parse=parse_webhook_hosts)] = ""
    model_control: Annotated[bool, _security("Let clients load and unload models. Set to false on untrusted networks.")] = True
    isolation: Annotated[Literal["none", "clients", "all"], _security("Run models in their own process: `none`, `clients` (uploaded models) or `all`. Models override it.")] = "clients"
    session_key: Annotated[str, _security("Secret for sessions and signed URLs, at least 32 characters. Use the same on all replicas. Default: generated.", secret=True, pattern=r"^(.{32,512})?$", example="$(openssl rand -hex 32)")] = ""
    audit_days: Annotated[int, _security("Retention of the audit log, in days. 0 disables the audit log.", ge=0, le=36500)] = 365

    request_timeout_s: Annotated[float, _limit("Request timeout, from arrival to response. Clients may ask for less.", gt=0, le=86400)] = 60.0
    max_wait_s: Annotated[float, _limit("Maximum estimated queue time.", gt=0, le=3600)] = 10.0
    max_queue: Annotated[int, _limit("Maximum queued requests per model and worker.", ge=1)] = 256
    max_body_bytes: Annotated[int, _limit("Maximum request body, 64 MiB (413, or RESOURCE_EXHAUSTED over gRPC).", ge=1024)] = 64 << 20
    max_inflight_bytes: Annotated[int, _limit("Maximum in-flight request bytes per worker, 512 MiB; at least `max_body_bytes`.", ge=1024)] = 512 << 20
    max_connections: Annotated[int, _limit("Maximum HTTP and gRPC connections per worker; capped by `ulimit -n`. The longest-idle HTTP connection is closed first.", ge=1)] = 1000
    max_images: Annotated[int, _limit("Maximum images or rows per request.", ge=1)] = 1000
    max_pixels: Annotated[int, _limit("Maximum pixels per image. Checked before decoding.", ge=1)] = 50_000_000
    max_tokens: Annotated[int, _limit("Maximum generated tokens per request, over all images, prompts and beams.", ge=1)] = 65_536
    body_timeout_s: Annotated[float, _limit("Timeout for a request body or gRPC message. HTTP bodies get 1 s more per 32 KiB.", gt=0, le=3600)] = 30.0

    journal_full: Annotated[FullPolicy, _storage("If the journal is full: `fail` (503), `block` (wait 1 s), or `shed` (respond without storing). Models override it.")] = "fail"
    journal_hard_bytes: Annotated[int, _storage("Journal lag at which the journal is full. 0: 1 GiB or 10 % of the free disk, whichever is less.", ge=0)] = 0
    max_input_bytes: Annotated[int, _storage("Image quota: above it the oldest images are removed. 0: no quota.", ge=0)] = 0
    job_days: Annotated[float, _storage("Retention of finished jobs, in days.", ge=0, le=36500)] = 7.0
    signals_per_s: Annotated[float, _storage("Drift-signal sampling rate, in images per second, model and worker. 0 disables signals.", ge=0)] = 4.0

    log_requests: Annotated[float, _observed("Access-log sampling rate, 0 to 1. Failed and rejected requests are always logged if it is not 0.", ge=0, le=1)] = 0.0
    strict_readiness: Annotated[bool, _observed("Readiness fails if any model failed to load.")] = True

    name: Annotated[str, _expert("Model name, if the repository is one model, as in KServe. Default: its folder's name.", pattern=r"^((?!\.+$)[A-Za-z0-9._-]{1,128})?$", example="flowers")] = ""
    models_poll_s: Annotated[float, _expert("Polling interval of the model repository. 0: reload on request only.", ge=0, le=86400)] = 0.0
    load_timeout_s: Annotated[float, _expert("Timeout for a model's warm-up, and for the trial of a model that a client loads.", gt=0, le=86400)] = 60.0
    extensions: Annotated[str, _expert("Folder of Python modules for `module:attribute` in model.toml. Installed modules take precedence.")] = ""
    bulk_folder: Annotated[str, _expert("Folder that bulk inference may read. Default: bulk inference is off.")] = ""
    protocol: Annotated[Literal["chariot-v2-kserve", "chariot-v2"], _expert("Protocol reported to Chariot: `chariot-v2-kserve` or `chariot-v2`. Both are always served.")] = "chariot-v2-kserve"
    not_finite: Annotated[Literal["token", "null", "error"], _expert("JSON encoding of NaN and infinity: `token`, `null` or `error`.")] = "token"
    grpc_connection_age_s: Annotated[float, _expert("Maximum age of gRPC connections, for load balancing. 0: no maximum.", ge=0, le=86400)] = 0.0
    drain_s: Annotated[float, _expert("Drain period after SIGTERM, during which readiness fails and requests are served.", ge=0, le=300)] = 0.3
    exit_timeout_s: Annotated[float, _expert("Kill child processes this long after SIGTERM.", ge=1, le=3600)] = 30.0
    # fmt: on

    extras: dict[str, dict[str, Any]] = {}
    """Settings of the extras of which one is set, by extra and name."""

    def of_extra(self, extra: str, name: str) -> Any:
        """Return a setting of an extra; None if the extra has none that is set."""
        return self.extras.get(extra, {}).get(name)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the settings for representations, secrets without what is secret."""
        values = [(field, self._value(field)) for field in fields().values()]
        return [(field.key, shown_secret(v) if field.is_secret else v) for field, v in values]

    def __repr__(self) -> str:
        """Return all settings, secrets without what is secret."""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def _value(self, field: "Field") -> Any:
        if not field.extra:
            return getattr(self, field.attribute)
        return self.extras.get(field.extra, {}).get(field.attribute, field.default)

    @property
    def secrets(self) -> frozenset[str]:
        """Values of the secret settings, for texts that have to do without them."""
        values = (self._value(field) for field in fields().values() if field.is_secret)
        return frozenset(filter(None, values))

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the store."""
        path = quote(str(Path(self.data).absolute() / "store.db"), safe="/ ")
        return self.database or f"sqlite:///{path}"

    journal_directory = _DataPath("journal")
    """Folder where workers append records and the writer reads them."""
    audit_directory = _DataPath("audit")
    """Folder of the audit log."""
    jobs_directory = _DataPath("jobs")
    """Folder with one folder per job."""
    baselines_directory = _DataPath("baselines")
    """Folder with one folder of baselines per model."""
    views_directory = _DataPath("views")
    """Folder of saved views."""
    drift_directory = _DataPath("drift")
    """Folder of drift schedules, their history, and undelivered alerts."""
    evaluation_directory = _DataPath("evaluation")
    """Folder of evaluation schedules, their history, and undelivered alerts."""
    erasures_directory = _DataPath("erasures")
    """Folder of the receipts of erasures."""
    archives_directory = _DataPath("archives")
    """Folder of the unpacked archives of models."""

    @property
    def blob_location(self) -> str:
        """Folder or URL of the input images."""
        return self.blobs or str(Path(self.data) / "blobs")

    rebuild_file = _DataPath("rebuild.progress")
    """File with the progress of a rebuild of the store."""

    @property
    def thread_count(self) -> int:
        """Threads of a worker that run requests."""
        return self.threads or len(os.sched_getaffinity(0))


class Field(NamedTuple):
    """Declaration of one setting."""

    key: str
    """Key in `quadriga.toml`, such as `extras.sign_on.issuer`."""
    name: str
    """Name in flags and variables, such as `extras_sign_on_issuer`."""
    attribute: str
    """Name in the struct that declares it."""
    extra: str
    """Extra that declares it; empty for the server itself."""
    kind: Any
    default: Any
    text: str
    group: str
    is_secret: bool
    parse: Callable[[str], object] | None
    example: str


def fields_of(kind: type[msgspec.Struct], extra: str = "") -> Iterator[Field]:
    """Yield the settings that a struct declares."""
    hints = get_type_hints(kind, include_extras=True)
    for name, default in zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True):
        if get_origin(hints[name]) is Annotated:
            type_, meta = get_args(hints[name])
            key = f"extras.{extra}.{name}" if extra else name
            yield Field(
                key,
                key.replace(".", "_"),
                name,
                extra,
                type_,
                default,
                meta.description,
                **meta.extra,
            )


@cache
def fields() -> dict[str, Field]:
    """Return every setting of the server and of the extras that are here, by its name in flags and variables."""
    declared = [*fields_of(Settings)]
    for extra in extras.SETTINGS:
        with suppress(extras.MissingExtra):
            declared += fields_of(extras.settings_of(extra, extra), extra)
    return {field.name: field for field in declared}


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

RENAMED = {
    "clickhouse": "extras_clickhouse_url",
    "label_studio_hosts": "extras_label_studio_hosts",
    "label_studio_token": "extras_label_studio_token",
    "label_studio_url": "extras_label_studio_url",
    "max_model_source_bytes": "extras_object_stores_max_bytes",
    "model_cache": "extras_object_stores_cache",
    "oidc_audience": "extras_sign_on_audience",
    "oidc_client_id": "extras_sign_on_client_id",
    "oidc_client_secret": "extras_sign_on_client_secret",
    "oidc_issuer": "extras_sign_on_issuer",
    "oidc_roles": "extras_sign_on_roles",
    "oidc_scopes": "extras_sign_on_scopes",
}
"""Settings of release 0.2.0 that an extra has now: the old name sets the new one, with a warning."""

FILE_SUFFIX = "_FILE"
"""Ending of the variables that name a file with the value of a secret setting, as secrets of containers are given."""

API_KEY_VARIABLE = PREFIX + "API_KEY"
"""Environment variable with the key that commands send to a server."""

CA_VARIABLE = PREFIX + "CA" + FILE_SUFFIX
"""Environment variable with the file of the authorities that commands trust, instead of the system's."""

CLIENT_CERTIFICATE_VARIABLE = PREFIX + "CLIENT_CERTIFICATE" + FILE_SUFFIX
"""Environment variable with the file of the certificate and key that commands present to a server."""

NO_SETTINGS = (
    PREFIX + "CONFIG",
    API_KEY_VARIABLE,
    API_KEY_VARIABLE + FILE_SUFFIX,
    CA_VARIABLE,
    CLIENT_CERTIFICATE_VARIABLE,
)
"""Environment variables that are not those of a setting."""

CHARIOT_VARIABLES = {
    "MODEL_DIR": "models",
    "MODEL_PATH": "models",
    "UVICORN_HOST": "host",
    "UVICORN_PORT": "port",
    "WEB_CONCURRENCY": "workers",
    "DEFAULT_SCORE_THRESHOLD": "score_threshold",
    "CHARIOT_INFERENCE_PROTOCOL": "protocol",
    "INFERENCE_SERVICE_NAME": "name",
}
"""Environment variables of Chariot and of KServe, and the settings that they set."""


class _Given(NamedTuple):
    """A value of a setting, and where it was set."""

    value: Any
    origin: str


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Read the settings.

    Args:
        flags: Values of command-line flags, by name.
        environment: Environment variables, such as `os.environ`.
        file: A `quadriga.toml`; default: the one in `QUADRIGA_CONFIG`, else in the current folder.

    Raises:
        SettingsError: A setting is unknown or its value invalid.
    """
    given: dict[str, _Given] = {}
    explicit_file = file or environment.get(PREFIX + "CONFIG")
    path = Path(explicit_file or "quadriga.toml")
    if explicit_file or path.exists():
        _take(given, ((key, value, str(path)) for key, value in _toml(path).items()))
    _take(
        given,
        (
            (name, environment[variable], f"environment variable {variable}")
            for variable, name in CHARIOT_VARIABLES.items()
            if environment.get(variable)
        ),
    )
    _take(given, _variables(environment))
    _take(given, ((name, value, f"flag {flag_of(name)}") for name, value in flags.items()))
    parts = {
        extra: _converted(extras.settings_of(extra, extra), given, extra)
        for extra in {fields()[name].extra for name in given} - {""}
    }
    settings: Settings = msgspec.structs.replace(
        _converted(Settings, given),
        extras={extra: msgspec.structs.asdict(part) for extra, part in parts.items()},
    )
    if settings.insecure and settings.of_extra("sign_on", "issuer"):
        raise SettingsError("expected extras.sign_on.issuer or insecure, got both")
    return settings


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _take(given: dict[str, _Given], values: Iterable[tuple[str, Any, str]]) -> None:
    """Add what one source sets, by key or name, with its origin; of two names of a setting the new one counts.

    Raises:
        SettingsError: There is no such setting.
    """
    for key, value, origin in sorted(values, key=lambda value: value[0] not in RENAMED):
        if key in REMOVED:
            _log.warning("%s: the setting %s is gone: %s", origin, key, REMOVED[key])
            continue
        name = RENAMED.get(key, key).replace(".", "_")
        if name not in fields():
            raise unknown(key, origin)
        if key in RENAMED:
            _log.warning("%s: the setting %s is %s now", origin, key, fields()[name].key)
        given[name] = _Given(value, origin)


def unknown(key: str, origin: str) -> SettingsError:
    """Return the error about a key or name that is no setting, or is one of an extra that is not here."""
    stem = key.removesuffix(FILE_SUFFIX.lower())
    name = RENAMED.get(stem, stem).replace(".", "_")
    for extra in extras.SETTINGS:
        if name.startswith(f"extras_{extra}_"):
            try:
                extras.settings_of(extra, key)
            except extras.MissingExtra as error:
                return SettingsError(f"{origin}: {error}")
    names = {old: new for old, new in RENAMED.items() if new in fields()}
    names |= {own: own for own in fields()}
    nearest = [fields()[names[match]].key for match in get_close_matches(name, names, 1)]
    hint = f"the nearest is {nearest[0]}" if nearest else "see quadriga serve --help"
    return SettingsError(f"{origin}: expected a setting, got {key!r}: {hint}")


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin of each setting in `QUADRIGA_*`, or in a file that one names.

    Raises:
        SettingsError: A secret is in the environment and in a file, or the file cannot be read.
    """
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable in NO_SETTINGS:
            continue
        name, value = variable.removeprefix(PREFIX).lower(), text
        if _names_secret_file(variable):
            in_environment = variable.removesuffix(FILE_SUFFIX)
            if not text:
                continue
            if environment.get(in_environment):
                raise SettingsError(f"expected {in_environment} or {variable}, got both")
            name, value = name.removesuffix(FILE_SUFFIX.lower()), read_secret(variable, environment)
        elif environment.get(variable + FILE_SUFFIX) and _names_secret_file(variable + FILE_SUFFIX):
            continue  # it is empty, or the branch above says so
        yield name, value, f"environment variable {variable}"


def _names_secret_file(variable: str) -> bool:
    """Check whether a variable is one that names a file with a secret."""
    if not (variable.startswith(PREFIX) and variable.endswith(FILE_SUFFIX)):
        return False
    name = variable.removeprefix(PREFIX).removesuffix(FILE_SUFFIX).lower()
    field = fields().get(RENAMED.get(name, name))
    return field is not None and field.is_secret


def open_secret_files(environment: Mapping[str, str]) -> list[str]:
    """Return the files of secret settings that every user of the machine may read.

    Files below `/run/secrets` are left out: there a platform puts what this container alone sees, whatever its mode.
    """
    paths = (Path(text) for name, text in environment.items() if text and _names_secret_file(name))
    return [
        str(path)
        for path in paths
        if not path.is_relative_to("/run/secrets") and path.stat().st_mode & stat.S_IROTH
    ]


def read_secret(variable: str, environment: Mapping[str, str]) -> str:
    """Read the file that a variable names; one newline at its end does not count.

    Raises:
        SettingsError: It cannot be read, or is empty.
    """
    path = Path(environment[variable])
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{variable}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:  # its message has what it could not decode
        raise SettingsError(f"{variable}: expected text in UTF-8 in {path}, got none") from None
    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise SettingsError(f"{variable}: expected a value in {path}, got an empty file")
    return value


def _toml(path: Path) -> dict[str, Any]:
    """Return the keys of a settings file, those of extras as `extras.sign_on.issuer`."""
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: expected TOML, got: {error}") from error
    tables = keys.pop("extras", {})
    if not isinstance(tables, dict) or not all(
        isinstance(table, dict) for table in tables.values()
    ):
        raise SettingsError(f"{path}: expected extras to be tables such as [extras.sign_on]")
    return keys | {
        f"extras.{extra}.{name}": value
        for extra, table in tables.items()
        for name, value in table.items()
    }


def _converted(kind: type[Declared], given: Mapping[str, _Given], extra: str = "") -> Declared:
    """Return the settings of an extra, or of the server itself, as the struct that declares them.

    Raises:
        SettingsError: A value is wrong, or one is missing that others need.
    """
    own = {
        field.attribute: field
        for name, field in fields().items()
        if field.extra == extra and name in given
    }
    values = {name: given[field.name].value for name, field in own.items()}
    try:
        made = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        name, _, text = explain_validation_error(error, kind).partition(": ")
        if name not in own:  # a check of several settings
            raise SettingsError(f"extras.{extra}: {error}") from error
        origin, secret = given[own[name].name].origin, own[name].is_secret
        key = "" if origin.startswith("flag ") else f"{own[name].key}: "
        shown = shown_secret(values[name]) if secret else values[name]
        text = f"{origin}: {key}{_in_words(text, shown, own[name])}"
        raise SettingsError(text) from (None if secret else error)
    for name, field in own.items():
        if field.parse is not None:
            try:
                field.parse(getattr(made, name))
            except ValueError as error:
                raise SettingsError(f"{given[field.name].origin}: {error}") from error
    return made


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a table",
}


def _in_words(text: str, value: object, field: Field) -> str:
    """Return what is wrong with a setting without words of Python, and with the value."""
    text = re.sub(
        r"Expected 'str' matching regex '.*'",
        lambda _: f'expected text such as "{field.example}"',
        text,
    )
    text = re.sub(
        r"Expected '(\w+)'",
        lambda match: f"expected {_KINDS.get(match[1], match[1])}",
        text,
        count=1,
    )
    text = re.sub(r", got '\w+'$", "", text)
    return text if ", got " in text else f"{text}, got {value!r}"


def add_extensions(settings: Settings) -> None:
    """Let model.toml name the modules of the folder `extensions`; it is searched last.

    Raises:
        SettingsError: There is no such folder.
    """
    if not settings.extensions:
        return
    folder = Path(settings.extensions).absolute()
    if not folder.is_dir():
        raise SettingsError(f"folder of the setting extensions not found: {settings.extensions}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
