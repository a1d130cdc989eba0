"""HTTP routes that list models: what is served, what is stored of it, and what its monitoring last said."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec.structs import replace

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.openapi import NOT_READY, UNKNOWN_MODEL
from quadriga.engine.api.routes import get
from quadriga.engine.models.repository import ServedVersion
from quadriga.monitor.drift.baselines import BaselineState
from quadriga.monitor.drift.parameters import DEFAULT_BASELINE
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.current import CurrentDrift, CurrentReport
from quadriga.monitor.report.acknowledgements import Acknowledgement, read_acknowledgement
from quadriga.monitor.report.saved import ReportStore, ReportSummary
from quadriga.monitor.report.schema import Metric
from quadriga.monitor.watch.mutes import Mute, MuteStore
from quadriga.proto.messages import ModelState
from quadriga.store.query.filters.syntax import Compare, Range, leaves
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.model_counts import StoredVersion, stored_versions
from quadriga.store.query.names import find_model_name
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import (
    JSON_ERRORS,
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
)
from quadriga.store.records.records import is_replay, live_name, replay_name
from quadriga.store.records.scope import Scoped

_Version = TypeVar("_Version", ServedVersion, StoredVersion)

MAX_LABELS = 100
"""Maximum number of labels that are listed of a model."""


class ModelVersion(msgspec.Struct, frozen=True):
    """One file of a model: served, stored, or both."""

    version: str
    sha256: str | None
    """Hash of the file; null where it is not loaded and nothing is stored of it."""
    task: str | None
    state: ModelState | None
    """State on this server; null where only inferences of it are stored."""
    reason: str
    """Why the state is `FAILED`."""
    behind: str | None
    """Name of the model that answers its crops; null without one, and where it is not loaded."""
    inferences: int
    first_at: str | None
    """Minute of the first stored inference of this file, RFC 3339, UTC."""
    last_at: str | None
    """Time of the last inference, RFC 3339, UTC; its minute if it is not stored any more."""
    is_replaced: bool = False
    """Whether another file is served under the number of this version now; not where no file is known."""


class LastBaseline(msgspec.Struct, frozen=True):
    """The baseline that drift is compared with where none is named."""

    name: str
    state: BaselineState
    created: str


class LastDrift(msgspec.Struct, frozen=True):
    """The drift report that says how the model is now, see `CurrentDrift`."""

    report: str
    created: str
    status: str
    """`ok`, `drift`, `insufficient` or `error`."""
    acknowledged: Acknowledgement | None = None
    """Who acknowledged its alarm first; null where nobody did, and without an alarm."""
    muted: bool = False
    """Whether all of its alarms are muted now."""
    undecided: list[str] = []
    """Signals without an alarm that moved, with too few independent values to say so."""
    over: bool = False
    """Whether a later comparison has no alarm, though nobody acknowledged this one."""

    @property
    def calls(self) -> bool:
        """Whether it has an alarm that nobody acknowledged, and that is not muted."""
        return self.status == "drift" and self.acknowledged is None and not self.muted


class LastEvaluation(msgspec.Struct, frozen=True):
    """The evaluation that says how good the model is, with its first metric: the newest of a schedule or without a filter."""

    report: str
    created: str
    n: int
    """Number of images that count."""
    headline: Metric | None
    version: str = ""
    """The version that was evaluated; several are listed, empty where it is not known."""
    is_pooled: bool = False
    """Whether the metric is of several versions, or several files of one, together."""

    def is_of(self, version: str) -> bool:
        """Check whether the metric is of this version alone."""
        return not self.is_pooled and self.version in ("", version)


class ModelEntry(msgspec.Struct, frozen=True):
    """A model that is served, or has stored inferences."""

    name: str
    id: str
    """Name of the model in paths of Chariot's clients, `m-<name>`."""
    served: bool
    task: str | None
    versions: list[ModelVersion]
    """Served versions first, then files that only inferences are stored of."""
    labels: list[str]
    """The first labels of the served version, else those of the description."""
    label_count: int
    inferences: int
    """Number of inferences stored, those that retention removed since included."""
    errors: int
    first_at: str | None
    """Minute of the first inference, RFC 3339, UTC."""
    last_at: str | None
    """Time of the last inference, RFC 3339, UTC; its minute if it is not stored any more."""
    baseline: LastBaseline | None
    drift: LastDrift | None
    evaluation: LastEvaluation | None
    replays: list[ModelVersion] = []
    """Versions that stored images of the model were replayed on; their inferences are in no other number here."""
    drift_mute: Mute | None = None
    """Until when alarms of its schedule alert nobody; null while they do."""


class ModelList(msgspec.Struct, frozen=True):
    """All models, by name."""

    models: list[ModelEntry]


class ModelEntries:
    """All models that the caller may see.

    Args:
        served_versions: Returns the versions of all models of this server.
        inferences: The store.
        reports: The reports of drift and evaluation.
        drift: Knows the baselines.
        mutes: The mutes of models.
        current_drift: Chooses the drift report of a model.
        labels: Returns the labels that a team's description gives to a model that is served elsewhere.
    """

    def __init__(
        self,
        served_versions: Callable[[], list[ServedVersion]],
        inferences: Scoped[InferenceReader],
        reports: Scoped[ReportStore],
        drift: Scoped[DriftService],
        mutes: MuteStore,
        *,
        current_drift: Scoped[CurrentDrift],
        labels: Callable[[str, str], Sequence[str]] = lambda *_: (),
    ) -> None:
        self._labels = labels
        self._served_versions = served_versions
        self._inferences = inferences
        self._reports = reports
        self._drift = drift
        self._mutes = mutes
        self._current_drift = current_drift

    def all(self, only: str | None = None, *, is_brief: bool = False) -> list[ModelEntry]:
        """Return all models that are served or have stored inferences, by name.

        Args:
            only: Name of the one model to return; None for all.
            is_brief: Whether to leave out baselines, labels of descriptions and mutes without an alarm, which cost files to
                read for each model.
        """
        scope = caller_scope()
        served = _by_name(v for v in self._served_versions() if scope.admits_model(v.name))
        stored = _by_name(_stored(self._inferences.within(scope)))
        baselines = None if is_brief else self._drift.within(scope)
        reports = self._reports.within(scope)
        names = served.keys() | set(map(live_name, stored))
        if only is not None and is_replay(only):
            names.add(only)
        by_kind: defaultdict[tuple[str, str], list[ReportSummary]] = defaultdict(list)
        for summary in reports.all():  # the newest first
            if (named := find_model_name(summary.model.name, names)) is not None:
                by_kind[named, summary.kind].append(summary)
        current_drift = self._current_drift.within(scope)
        entries = []
        for name in sorted(names if only is None else names & {only}):
            of_server, of_name = served.get(name, []), stored.get(name, [])
            is_described = not is_brief and not any(version.labels for version in of_server)
            compared = current_drift.choose(name, by_kind[name, "drift"])
            has_alarm = compared is not None and compared.summary.status == "drift"
            mute = self._mutes.within(scope).active(name) if has_alarm or not is_brief else None
            described_labels = self._labels(name, scope.team) if is_described else ()
            replays = [] if is_replay(name) else stored.get(replay_name(name), [])
            entry = replace(
                _entry(name, of_server, of_name, described_labels),
                baseline=_default_baseline(baselines, name, of_name),
                drift=_last_drift(compared, reports, mute),
                evaluation=_last_evaluation(by_kind[name, "evaluation"]),
                replays=[_version(replayed, replayed) for replayed in replays],
                drift_mute=mute,
            )
            entries.append(entry)
        return entries

    def one(self, name: str) -> ModelEntry:
        """Return one model, by its name in any case.

        Raises:
            NotFoundError: No such model is served or has stored inferences.
        """
        model = self._inferences.within(caller_scope()).names.resolve(name)
        return next(iter(self.all(model)))


def served_entries(served_versions: list[ServedVersion]) -> list[ModelEntry]:
    """Return the models of a server that stores nothing, by name."""
    scope = caller_scope()
    served = _by_name(v for v in served_versions if scope.admits_model(v.name))
    return [_entry(name, versions, []) for name, versions in sorted(served.items())]


def model_routes(entries: ModelEntries) -> list[HTTPRouteHandler]:
    """Return the handlers that list models."""

    @get("/api/models", need="read")
    def list_models() -> ModelList:
        """Return all models that are served or have stored inferences, by name."""
        return ModelList(entries.all())

    @get("/api/models/{name:str}", need="read", errors={404: UNKNOWN_MODEL, 503: NOT_READY})
    def get_model(name: FromPath[str]) -> ModelEntry:
        """Return one model, as in the list."""
        return entries.one(name)

    return [list_models, get_model]


def _by_name(versions: Iterable[_Version]) -> dict[str, list[_Version]]:
    by_name: dict[str, list[_Version]] = {}
    for version in versions:
        by_name.setdefault(version.name, []).append(version)
    return by_name


def _stored(inferences: InferenceReader) -> list[StoredVersion]:
    """Return what is stored; nothing while the database is away, which does not hide what is served."""
    with suppress(NotReadyError, QueryTimeoutError), inferences.snapshot() as connection:
        return stored_versions(connection, inferences.scope)
    return []


def _last_evaluation(summaries: Sequence[ReportSummary]) -> LastEvaluation | None:
    """Return the newest evaluation of images with ground truth, of all of them, of a time, or of a schedule; None without any.

    One with another filter, which somebody made of a part, counts only if there are no others, and one of no images after all.
    """
    measured = [summary for summary in summaries if summary.n]
    of_all = (
        summary
        for summary in measured
        if summary.is_scheduled or not summary.filter or _is_of_a_time(summary.filter)
    )
    last = next(of_all, next(iter(measured or summaries), None))
    if last is None:
        return None
    version = last.model.version
    return LastEvaluation(
        last.id,
        last.created,
        last.n,
        last.headline,
        version=version,
        is_pooled=last.model.is_pooled or ", " in version,
    )


def _is_of_a_time(where: Any) -> bool:
    """Check whether a filter leaves out nothing but other times."""
    try:
        compared = leaves(QueryRequest(where).parse_filter())
    except QueryError:  # as of a version that knew other fields
        return False
    return all(isinstance(leaf, Compare | Range) and leaf.field == "ts" for leaf in compared)


class _Alarm(msgspec.Struct, frozen=True):
    name: str
    alarm: bool


class _Alarms(msgspec.Struct, frozen=True):
    """The fields of a drift report that say which signals have an alarm."""

    signals: list[_Alarm]


def _last_drift(
    compared: CurrentReport | None, reports: ReportStore, mute: Mute | None
) -> LastDrift | None:
    if compared is None:
        return None
    summary = compared.summary
    last = LastDrift(summary.id, summary.created, summary.status, undecided=summary.undecided)
    if summary.status != "drift":
        return last
    with suppress(NotFoundError, *JSON_ERRORS):  # removed since, or damaged
        return replace(
            last,
            over=compared.is_over,
            acknowledged=read_acknowledgement(reports, summary.id),
            muted=mute is not None and mute.covers(_alarmed_signals(reports, summary.id, mute)),
        )
    return last


def _alarmed_signals(reports: ReportStore, report_id: str, mute: Mute) -> list[str]:
    """Return the signals of a report with an alarm; nothing is read for a mute of all signals."""
    if not mute.signals:
        return []
    report = msgspec.json.decode(reports.read(report_id), type=_Alarms)
    return [signal.name for signal in report.signals if signal.alarm]


def _default_baseline(
    drift: DriftService | None, name: str, stored: Sequence[StoredVersion]
) -> LastBaseline | None:
    if drift is None:
        return None
    newest = max(stored, key=attrgetter("last_at"), default=None)
    current = drift.current_baselines(name, newest.sha256 if newest else "")
    baselines = {baseline.name: baseline for baseline in current}
    baseline = baselines.get(DEFAULT_BASELINE) or next(iter(baselines.values()), None)
    if baseline is None:
        return None
    return LastBaseline(baseline.name, baseline.state, baseline.created)


def _entry(
    name: str,
    served: list[ServedVersion],
    stored: list[StoredVersion],
    described_labels: Sequence[str] = (),
) -> ModelEntry:
    """Return a model without what its monitoring said."""
    versions = _versions(served, stored)
    labels = next((version.labels for version in served if version.labels), described_labels)
    return ModelEntry(
        name=name,
        id=f"m-{name}",
        served=any(version.state != "UNLOADED" for version in served),
        task=next((version.task for version in versions if version.task), None),
        versions=versions,
        labels=list(labels[:MAX_LABELS]),
        label_count=len(labels),
        inferences=sum(version.inferences for version in stored),
        errors=sum(version.errors for version in stored),
        first_at=min((version.first_at for version in stored), default=None),
        last_at=max((version.last_at for version in stored), default=None),
        baseline=None,
        drift=None,
        evaluation=None,
    )


def _versions(served: list[ServedVersion], stored: list[StoredVersion]) -> list[ModelVersion]:
    """Return the versions of a model: those that are served, and behind them those that are only stored."""
    counts = {(version.version, version.sha256): version for version in stored}
    versions = [
        _version(version, counts.pop((version.version, version.sha256 or ""), None), served=version)
        for version in served
    ]
    current = {version.version for version in served if version.sha256}
    for count in reversed(counts.values()):
        is_replaced = bool(count.sha256) and count.version in current
        versions.append(replace(_version(count, count), is_replaced=is_replaced))
    return versions


def _version(
    known: ServedVersion | StoredVersion,
    stored: StoredVersion | None,
    served: ServedVersion | None = None,
) -> ModelVersion:
    """Return a version that is served, or of which inferences are stored, or both."""
    return ModelVersion(
        known.version,
        known.sha256,
        known.task,
        state=served.state if served else None,
        reason=served.reason if served else "",
        behind=served.behind if served else None,
        inferences=stored.inferences if stored else 0,
        first_at=stored.first_at if stored else None,
        last_at=stored.last_at if stored else None,
    )
