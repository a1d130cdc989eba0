"""Which version of a model answers a request that names none: the highest that is ready, or by the model's traffic rule.

Every protocol finds its version here. A copy of the rules in the data folder lets a server start with them while the
database is away.
"""

import hashlib
import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.shared_counts import OTHER, REDIRECTED, SharedCounts
from quadriga.engine.models.model import Model
from quadriga.engine.models.repository import ModelRepository
from quadriga.proto.errors import InvalidRequest, ProtocolError, Unsupported
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.proto.messages import InferRequest
from quadriga.quoting import quoted
from quadriga.store.database.database import ReaderPool, writer_engine
from quadriga.store.keys.traffic import StoredRule, read_rules, remove_rule, write_rule
from quadriga.store.query.names import find_model_name
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import JSON_ERRORS, NotReadyError, StoreError

StructT = TypeVar("StructT")

MAX_SHARES = 16
"""Maximum number of versions with a share."""

MAX_KEY_CHARACTERS = 256
"""Maximum length of the metadata key, and of a version."""

_TOLERANCE = 1e-6
"""How far the sum of shares may be from 1, as decimal fractions are rounded."""


class TrafficRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How requests to a model that name no version are divided."""

    shares: dict[str, float] = {}
    """Share of each version, together 1; empty: the highest version that is ready answers all."""
    sticky_by: str | None = None
    """Metadata key: requests with the same value of it are answered by the same version."""

    @property
    def main_version(self) -> str | None:
        """The version with the largest share, the highest of several; None without shares."""
        shares = self.shares
        return max(shares, key=lambda name: (shares[name], version_order(name)), default=None)


class Draw(msgspec.Struct, frozen=True):
    """What a rule decides about one request."""

    version: str | None
    """The version that answers; None: the highest that is ready."""
    wanted: str | None
    """The version that would answer if all were ready."""


def decode_fields(type_: type[StructT], body: bytes, names: str) -> StructT:
    """Decode a Struct with fields of these names from JSON; raise InvalidRequest if it is none."""
    try:
        return msgspec.json.decode(body, type=type_)
    except JSON_ERRORS as error:
        raise InvalidRequest(
            f"expected a JSON object with {names}, got: {quoted(str(error), 300)}"
        ) from error


def decode_rule(body: bytes) -> TrafficRule:
    """Decode a rule from JSON.

    Raises:
        InvalidRequest: It is no rule, or its numbers make no sense.
    """
    rule = decode_fields(TrafficRule, body or b"{}", "shares and sticky_by")
    check_rule(rule)
    return rule


def check_rule(rule: TrafficRule) -> None:
    """Check the numbers and texts of a rule; raises as `decode_rule`."""
    if len(rule.shares) > MAX_SHARES:
        raise InvalidRequest(
            f"expected shares of at most {MAX_SHARES} versions, got {len(rule.shares)}"
        )
    for version, share in rule.shares.items():
        if not 0 <= share <= 1:  # false for NaN, too
            raise InvalidRequest(
                f"expected the share of version {quoted(version, 40)} to be from 0 to 1, got {share:g}"
            )
    total = math.fsum(rule.shares.values())
    if rule.shares and abs(total - 1) > _TOLERANCE:
        raise InvalidRequest(f"expected shares that add up to 1, got {total:g}")
    if rule.sticky_by is not None:
        if not rule.shares:
            raise InvalidRequest("expected shares beside sticky_by, got none")
        if not 0 < len(rule.sticky_by) <= MAX_KEY_CHARACTERS:
            raise InvalidRequest(
                f"expected sticky_by to be a metadata key of 1 to {MAX_KEY_CHARACTERS} characters, "
                f"got {len(rule.sticky_by)}"
            )


def check_versions(rule: TrafficRule, model: str, versions: Collection[str]) -> None:
    """Check that a model has the versions of a rule.

    Raises:
        InvalidRequest: It has not; the text names those that it has.
    """
    for version in rule.shares:
        if version not in versions:
            known = ", ".join(sorted(versions, key=version_order)[:20])
            raise InvalidRequest(
                f"expected a version of {model!r} among {known}, got {quoted(version, 40)}"
            )


def draw_version(
    rule: TrafficRule, model: str, request: InferRequest, ready: Collection[str]
) -> Draw:
    """Draw the version that answers a request, among those that are ready.

    The share of a version that is not ready goes to the others, by a further draw: what they answer anyway stays theirs.
    """
    shares = {version: share for version, share in rule.shares.items() if share > 0}
    if not shares:
        return Draw(None, None)
    subject = _subject(rule, request)
    wanted = version = _drawn(shares, model, subject, "")
    while version is not None and version not in ready:
        del shares[version]
        version = _drawn(shares, model, subject, version)
    return Draw(version, wanted)


def version_order(version: str) -> tuple[int, str]:
    """Return a sort key of versions, which are numbers."""
    return (int(version) if version.isdecimal() else -1, version)


def _drawn(shares: Mapping[str, float], model: str, subject: str, salt: str) -> str | None:
    """Return the version at whose part of the line a subject lies; None without versions."""
    versions = sorted(shares, key=version_order)
    place = _point(model, subject, salt) * math.fsum(shares.values())
    for version in versions:
        place -= shares[version]
        if place < 0:
            return version
    return versions[-1] if versions else None  # rounding


def _point(model: str, subject: str, salt: str) -> float:
    """Return a number from 0 to below 1 that follows from texts, spread evenly."""
    text = f"{salt}\0{model}\0{subject}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest()) / (1 << 48)


def _subject(rule: TrafficRule, request: InferRequest) -> str:
    """Return what decides about a request: the value of the sticky key, else the id of the request."""
    value = None if rule.sticky_by is None else _metadata_value(request, rule.sticky_by)
    return request.id if value is None else f"{rule.sticky_by}={value}"


def _metadata_value(request: InferRequest, key: str) -> str | None:
    """Return a value of the metadata as JSON, that of the first input that has it; None where there is none.

    Metadata that cannot be read counts as none here: whoever reads it to store it refuses the request.
    """
    for parameters in (*(tensor.parameters for tensor in request.inputs), request.parameters):
        written = parameters.get("metadata")
        if written is None:
            continue
        try:
            value: Any = parse_metadata_value(written, "metadata")
        except (ProtocolError, ValueError, RecursionError):
            return None
        value = value[key] if key in value else _at_path(value, key.split("."))
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int | float | bool):
            return msgspec.json.encode(value).decode()
    return None


def _at_path(value: Any, parts: list[str]) -> Any:
    for part in parts:
        value = value.get(part) if isinstance(value, dict) else None
    return value


REFRESH_S = 2.0
"""Time until a change of a rule counts in every worker of every server."""

FIRST_READ_S = 5.0
"""Maximum time that a worker waits for the rules before it is ready; then it goes on with its copy."""

COPY_FILE = "traffic.json"

_RETRY_S = 0.2

_LOG_INTERVAL_S = 60.0

_log = logging.getLogger("quadriga.models")


class TrafficRules:
    """The rules of all models, kept up to date by a thread; without a store there are none.

    Args:
        settings: Settings of the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._copy = Path(settings.data) / COPY_FILE
        self._database = (
            ReaderPool(settings.database_url, connections=1) if settings.store else None
        )
        self._stop = threading.Event()
        self._known = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stored: dict[str, StoredRule] = {}
        self.rules: Mapping[str, TrafficRule] = {}
        """Rules by the name of their model."""
        self._take(self._read_copy() if settings.store else [])

    def start(self) -> None:
        """Begin to read the rules, in a thread of its own."""
        if self._database is not None:
            self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until the rules were read, for a while."""
        if self._database is not None and self._database.has_database():
            self._known.wait(FIRST_READ_S)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._database is not None:
            self._database.close()

    def stored(self, model: str) -> StoredRule | None:
        """Return the rule of a model with who set it when; None without one."""
        return self._stored.get(model)

    def put(self, model: str, rule: TrafficRule, changed_by: str) -> None:
        """Set the rule of a model; a rule that changes nothing is removed.

        Raises:
            Unsupported: The server stores nothing.
            StoreError: The database does not answer.
        """
        if self._database is None:
            raise Unsupported("expected a server with a store, as shares are kept there")
        if not self._database.has_database():  # to open it for writing would make one
            raise NotReadyError("the database is not there yet: try again")
        with writer_engine(self._settings.database_url) as engine:
            if not rule.shares:
                remove_rule(engine, model)
            else:
                write_rule(engine, model, msgspec.json.encode(rule).decode(), changed_by)
        self.refresh()

    def refresh(self) -> None:
        """Read the rules.

        Raises:
            StoreError: The database does not answer.
            OSError: The copy cannot be written.
        """
        if self._database is None:
            return
        with self._lock:
            with self._database.snapshot() as connection:
                stored = read_rules(connection)
            self._take(stored)
            if stored != self._read_copy():
                self._copy.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._copy, msgspec.json.encode(stored), 0o600)
            self._known.set()

    def _run(self) -> None:
        failing = ""
        while not self._stop.is_set():
            try:
                self.refresh()
                failing = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, later changes of rules must count
                if self._known.is_set() and str(error) != failing:
                    is_expected = isinstance(error, StoreError | OSError)
                    text = "the shares of versions are those that were read last: %s"
                    _log.warning(text, error, exc_info=not is_expected)
                failing = str(error)
            self._stop.wait(REFRESH_S if self._known.is_set() else _RETRY_S)

    def _take(self, stored: list[StoredRule]) -> None:
        """Let rules count from now on."""
        by_model = {rule.model: rule for rule in stored}
        if by_model == self._stored:
            return
        rules = {}
        for rule in stored:
            try:
                fields = msgspec.json.decode(rule.rule, type=dict[str, Any])
                if fields.pop("shadow", None) is not None:
                    _log.warning(
                        "%s: the shadow of its traffic rule, of release 0.2.0, sees nothing any more: replay stored images instead",
                        rule.model,
                    )
                rules[rule.model] = msgspec.convert(fields, TrafficRule)
            except JSON_ERRORS:
                _log.error(
                    "%s: its traffic rule cannot be read: a newer version wrote it", rule.model
                )
        self._stored, self.rules = by_model, rules

    def _read_copy(self) -> list[StoredRule]:
        with suppress(OSError, *JSON_ERRORS):
            return msgspec.json.decode(self._copy.read_bytes(), type=list[StoredRule])
        return []


class Traffic:
    """Finds the model that answers a request; safe to use from several threads.

    Args:
        repository: Models of this worker.
        rules: Rules by the name of their model, as of now; None without any.
        counts: What is counted for metrics.
    """

    def __init__(
        self,
        repository: ModelRepository,
        rules: TrafficRules | None = None,
        counts: SharedCounts | None = None,
    ) -> None:
        self._repository = repository
        self._rules = rules
        self._counts = counts
        self._logged_s: dict[tuple[str, str], float] = {}

    def rule_of(self, name: str) -> TrafficRule | None:
        """Return the rule of a model by any form of its name; None without one."""
        rules = {} if self._rules is None else self._rules.rules
        if not rules:
            return None
        if name in rules or self._repository.is_folder(
            name
        ):  # the search of other forms sorts all names
            return rules.get(name)
        return rules.get(find_model_name(name, self._repository.names()) or "")

    def model_named(self, name: str, version: str | None, request: InferRequest) -> Model:
        """Return a model that a request needs: a named version, or the one that the request's draw decides for.

        Raises as `ModelRepository.get`.
        """
        if version is not None or (rule := self.rule_of(name)) is None or not rule.shares:
            return self._repository.get(name, version)
        ready = {model.version: model for model in self._repository.ready_versions(name)}
        model_name = next((model.name for model in ready.values()), name)
        draw = draw_version(rule, model_name, request, ready)
        if draw.wanted != draw.version and ready:
            self._note_redirected(model_name, draw.wanted or "")
        if draw.version is None:
            highest = next(iter(ready.values()), None)
            return self._repository.get(name) if highest is None else highest
        return ready[draw.version]

    def main_version(self, name: str) -> str | None:
        """Return the ready version of a model with the largest share, which describes it; None: the highest one."""
        rule = self.rule_of(name)
        if rule is None or (version := rule.main_version) is None:
            return None
        ready = {model.version for model in self._repository.ready_versions(name)}
        return version if version in ready else None

    def _note_redirected(self, model: str, version: str) -> None:
        """Count and log that the share of a version goes to others."""
        if self._counts is not None:
            self._counts.row((REDIRECTED, model, version), (REDIRECTED, OTHER, OTHER)).add(0)
        now_s = time.monotonic()
        if now_s - self._logged_s.get((model, version), -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_s[model, version] = now_s
            _log.warning(
                "%s %s: not ready: its share of the requests goes to other versions", model, version
            )
