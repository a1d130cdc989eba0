"""Which version of a model answers a request that names none: the highest that is ready, or by the model's traffic rule.

Every protocol finds its version here. A copy of the rules in the data folder lets a server start with them while the
database is away.
"""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.measures.server_numbers import REDIRECTED
from quadriga.engine.measures.shared_counts import OTHER, SharedCounts
from quadriga.engine.models.model import Model
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.traffic_rules import TrafficRule, draw_version
from quadriga.proto.errors import Unsupported
from quadriga.proto.messages import InferRequest
from quadriga.store.database import ReaderPool, writer_engine
from quadriga.store.disk import write_atomically
from quadriga.store.errors import JSON_ERRORS, NotReadyError, StoreError
from quadriga.store.model_names import find_model_name
from quadriga.store.traffic import StoredRule, read_rules, remove_rule, write_rule

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
            if rule.is_default:
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
            if self._take(stored) or not self._known.is_set():
                self._write_copy(stored)
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

    def _take(self, stored: list[StoredRule]) -> bool:
        """Let rules count from now on; return whether they are others than before."""
        by_model = {rule.model: rule for rule in stored}
        if by_model == self._stored:
            return False
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
        return True

    def _read_copy(self) -> list[StoredRule]:
        with suppress(OSError, *JSON_ERRORS):
            return msgspec.json.decode(self._copy.read_bytes(), type=list[StoredRule])
        return []

    def _write_copy(self, stored: list[StoredRule]) -> None:
        data = msgspec.json.encode(stored)
        if stored or self._copy.exists():
            with suppress(OSError):
                if self._copy.read_bytes() == data:
                    return
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._copy, data, 0o600)


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
