"""Statistics over inferences, by groups: from the rollups where they can tell, else from the rows themselves."""

import re
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from quadriga.store.database.database import execute, execute_in, placeholders
from quadriga.store.database.rollups import ALL_TIME, MINUTE_MS, Tally, cover, decode_counts
from quadriga.store.database.rows import (
    ModelRow,
    decode_label_scores,
    models_by_id,
    storable_text,
)
from quadriga.store.query.filters.comparisons import UNITS_S
from quadriga.store.query.filters.syntax import And, Compare, Filter, Not, Or, conjuncts, leaves
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import Catalog, label_names
from quadriga.store.query.request import QueryRequest
from quadriga.store.records import metadata
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import Scope

MAX_S = 2.5  # of inferences that are counted one by one, the newest first
MAX_ROLLUPS = 250_000  # counts of models and times whose latencies or labels are added up
MAX_GROUPS = 10_000
GROUP_COLUMNS = ("model", "version", "task")  # what inferences are grouped by beside time and label
_NOTHING = "'{}'"

Metric = Literal[
    "count", "error_rate", "latency_mean", "latency_p50", "latency_p95", "latency_p99", "labels"
]
_QUANTILES = {"latency_p50": 0.50, "latency_p95": 0.95, "latency_p99": 0.99}
_LATENCIES = {"latency_mean", *_QUANTILES}
_DEFAULT: tuple[Metric, ...] = ("count", "error_rate", "latency_p50", "latency_p95", "latency_p99")
_WIDTH = re.compile(r"([1-9]\d{0,4})([smhdw])", re.ASCII)
_MONDAY_MS = 4 * 86_400_000  # the first of all, in 1970: weeks begin with it
_MINUTE_US = MINUTE_MS * 1000


class AggregateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to count."""

    where: Any = None
    """A filter as JSON; relative moments are cut to the whole minute."""
    group: list[Any] = []
    """Any of `{"time": "1h"}`, `"model"`, `"version"`, `"task"`, `"label"` and `"meta.<path>"`."""
    metrics: list[Metric] | None = None
    """Count, error rate and quantiles of latency by default; of groups by label `count` alone, their predictions."""


class Aggregates(msgspec.Struct, frozen=True):
    """What was counted."""

    groups: list[dict[str, Any]]
    """What tells each, then its metrics; by time, then by name. Latencies are milliseconds."""
    source: Literal["rollups", "inferences"]
    partial: bool = False
    """Whether older inferences were not counted, as there was no time for them."""


class _Grouping(NamedTuple):
    """What tells groups apart."""

    names: tuple[str, ...]  # among `GROUP_COLUMNS`, then `meta.<path>`
    width_ms: int = 0  # of a group by time; 0 is none
    offset_ms: int = 0  # of the first of them, since 1970
    by_label: bool = False

    @property
    def metadata_names(self) -> tuple[str, ...]:
        """Names of groups by metadata, which only the inferences themselves tell."""
        return tuple(name for name in self.names if name.startswith("meta."))


class _Groups:
    """Tallies of groups: by the time at which a group begins, in milliseconds since 1970, then by names."""

    def __init__(self, grouping: _Grouping) -> None:
        self.grouping = grouping
        self.tallies: dict[tuple[Any, ...], Tally] = {}
        self.labels: dict[int, str] = {}  # names of the labels that the tallies count by number
        self.numbers: dict[int, int] = {}  # of labels by id, of which each team has its own

    def add_labels(self, connection: sa.Connection, scope: Scope) -> None:
        """Number the labels of a team, or those of all, so that labels of one name are one."""
        by_name: dict[str, int] = {}
        for id_, name in label_names(connection, scope).items():
            self.numbers[id_] = by_name.setdefault(name, len(by_name))
        self.labels = {number: name for name, number in by_name.items()}

    def of(self, at_ms: int, names: Mapping[str, Any]) -> Tally:
        """Return the tally of the group that an inference of this time and these names belongs to."""
        grouping, start_ms = self.grouping, 0
        if grouping.width_ms:
            start_ms = at_ms - (at_ms - grouping.offset_ms) % grouping.width_ms
        key = (start_ms, *(names[name] for name in grouping.names))
        tally = self.tallies.get(key)
        if tally is None:
            if len(self.tallies) >= MAX_GROUPS:
                raise QueryError(f"expected at most {MAX_GROUPS:,} groups, got more; narrow it")
            tally = self.tallies[key] = Tally()
        return tally


_Span = tuple[int, int, And]
"""A filter that rollups can answer: the minutes since 1970 from one until before another, and conditions on model, version and task alone."""


def aggregate(inferences: InferenceReader, request: AggregateRequest) -> Aggregates:
    """Count stored inferences; a QueryError where that means nothing, or is too much.

    Raises:
        NotFoundError: The filter compares with a model that is not known.
    """
    grouping = _grouping(request.group)
    metrics = _metrics(request.metrics, grouping)
    now_us = time.time_ns() // 1000
    now_us -= now_us % _MINUTE_US
    resolved = inferences.read_filter(QueryRequest(request.where), now_us)
    span = _span_of(resolved.tree)
    groups = _Groups(grouping)
    if not request.group:
        groups.of(0, {})  # there, however few match
    labels = "labels" in metrics or grouping.by_label
    if span is None or grouping.width_ms % MINUTE_MS or grouping.metadata_names:
        is_partial = _add_rows(inferences, request.where, now_us, groups, with_labels=labels)
        return Aggregates(_shown(groups, metrics), "inferences", partial=is_partial)
    latency = bool(metrics & _LATENCIES)
    with inferences.snapshot() as connection:
        catalog = Catalog(connection, inferences.scope, with_replays=resolved.with_replays)
        if labels:
            groups.add_labels(connection, inferences.scope)
        _add_rollups(connection, catalog, span, groups=groups, latency=latency, labels=labels)
    return Aggregates(_shown(groups, metrics), "rollups")


def _add_rows(
    inferences: InferenceReader, where: Any, now_us: int, groups: _Groups, *, with_labels: bool
) -> bool:
    """Count the rows that match one by one, the newest first; return whether the time ended before the last."""
    metadata_names = groups.grouping.metadata_names
    columns = ", ".join(
        (
            "coalesce(CAST(meta_flat AS text), meta)" if metadata_names else "NULL",
            "predictions" if with_labels else "NULL",
        )
    )
    statement = (
        f"SELECT seq, model_id, status, latency_us, {columns} FROM inference WHERE seq IN ({{}})"
    )
    labels: dict[str, int] = {}
    deadline_s, is_partial = time.monotonic() + MAX_S, False
    for ids in inferences.matching_ids(where, now_us, descending=True):
        if is_partial := time.monotonic() > deadline_s:
            break
        with inferences.snapshot() as connection:
            rows = execute_in(connection, statement, ids)
            models = models_by_id(connection, {row[1] for row in rows})
        for seq, model_id, status, latency_us, encoded, predictions in rows:
            names: dict[str, Any] = _names(models[model_id])
            if metadata_names:
                values = metadata.decode(encoded)
                names = names | {name: _ranked(values.get(name[5:])) for name in metadata_names}
            tally = groups.of(time_ms(seq), names)
            tally.count(status, latency_us)
            if not with_labels:
                continue
            for prediction in decode_label_scores(predictions) or ():
                if isinstance(prediction.label, str):
                    number = labels.setdefault(storable_text(prediction.label), len(labels))
                    tally.count_label(number, 1)
    groups.labels = {number: name for name, number in labels.items()}
    return is_partial


def _names(model: ModelRow) -> dict[str, str]:
    return dict(zip(GROUP_COLUMNS, (model.name, model.version, model.task), strict=True))


def _ranked(value: Any) -> tuple[int, Any]:
    """Return a metadata value as groups are told apart and ordered by it: absent, as lists and objects are, boolean, number, text."""
    if value is None or isinstance(value, list | dict):
        return 0, None
    if isinstance(value, str):
        return 3, value
    return 1 if isinstance(value, bool) else 2, value


def _grouping(group: list[Any]) -> _Grouping:
    names, width_ms, offset_ms = [], 0, 0
    for position, item in enumerate(group):
        is_metadata = isinstance(item, str) and item.startswith("meta.") and len(item) > 5
        if (is_metadata or item in (*GROUP_COLUMNS, "label")) and item not in names:
            names.append(item)
            continue
        match = None
        if isinstance(item, dict) and item.keys() == {"time"} and not width_ms:
            match = _WIDTH.fullmatch(str(item["time"]))
        if match is None:
            raise QueryError(
                f"expected group[{position}] to be one of model, version, task, label, meta.<key> and "
                '{"time": "1h"}'
                f" with a number and one of s, m, h, d, w, each once, got {str(item)[:80]!r}"
            )
        width_ms = int(match[1]) * UNITS_S[match[2]] * 1000
        offset_ms = _MONDAY_MS if match[2] == "w" else 0
    shown = tuple(name for name in GROUP_COLUMNS if name in names)
    shown += tuple(name for name in names if name.startswith("meta."))
    return _Grouping(shown, width_ms, offset_ms, "label" in names)


def _metrics(requested: list[Metric] | None, grouping: _Grouping) -> set[Metric]:
    if not grouping.by_label:
        return set(_DEFAULT if requested is None else requested)
    if requested is not None and set(requested) != {"count"}:
        raise QueryError(f"expected metrics of groups by label to be count alone, got {requested}")
    return {"count"}


def _shown(groups: _Groups, metrics: set[Metric]) -> list[dict[str, Any]]:
    grouping, shown = groups.grouping, []
    for (start_ms, *names), tally in sorted(groups.tallies.items()):
        group: dict[str, Any] = {}
        if grouping.width_ms:
            group["time"] = timestamp_text(start_ms)
        values = (name[1] if isinstance(name, tuple) else name for name in names)
        group |= zip(grouping.names, values, strict=True)
        mix = sorted((-n, groups.labels[label]) for label, n in tally.labels.items())
        if grouping.by_label:
            shown += [{**group, "label": label, "count": -n} for n, label in mix]
        else:
            group |= _measured(tally, metrics)
            if "labels" in metrics:
                group["labels"] = {label: -n for n, label in mix}
            shown.append(group)
    return shown


def _measured(tally: Tally, metrics: set[Metric]) -> dict[str, Any]:
    error_rate = tally.errors / tally.n if tally.n else None
    values: dict[str, Any] = {"count": tally.n, "error_rate": error_rate}
    values["latency_mean"] = tally.mean_latency_ms()
    values |= {name: tally.latency_ms(quantile) for name, quantile in _QUANTILES.items()}
    return {name: value for name, value in values.items() if name in metrics}


def _span_of(tree: Filter) -> _Span | None:
    """Return what rollups can answer of a filter; None where the rows must be looked at."""
    start, stop, conditions = 0, ALL_TIME, []
    for operand in conjuncts(tree):
        if all(
            isinstance(leaf, Compare) and leaf.field in GROUP_COLUMNS for leaf in leaves(operand)
        ):
            conditions.append(operand)
        elif (
            isinstance(operand, Compare)
            and operand.field == "ts"
            and operand.operator in {"ge", "lt"}
            and isinstance(operand.value, int)
            and operand.value % _MINUTE_US == 0
        ):
            minute = operand.value // _MINUTE_US
            if operand.operator == "ge":
                start = max(start, minute)
            else:
                stop = min(stop, minute)
        else:
            return None
    return start, stop, And(tuple(conditions))


def _holds(tree: Filter, catalog: Catalog, model_id: int) -> bool:
    if isinstance(tree, And):
        return all(_holds(operand, catalog, model_id) for operand in tree.operands)
    if isinstance(tree, Or):
        return any(_holds(operand, catalog, model_id) for operand in tree.operands)
    if isinstance(tree, Not):
        return not _holds(tree.operand, catalog, model_id)
    assert isinstance(tree, Compare)
    return tree.operator == "exists" or model_id in catalog.model_ids(tree.field, tree.values)


def _add_rollups(
    connection: sa.Connection,
    catalog: Catalog,
    span: _Span,
    groups: _Groups,
    *,
    latency: bool,
    labels: bool,
) -> None:
    first_minute, after_minute, tree = span
    models = {
        model.id: _names(model)
        for model in catalog.listed_models
        if _holds(tree, catalog, model.id)
    }
    if not models:
        return
    grouping, remaining = groups.grouping, MAX_ROLLUPS
    width, offset = grouping.width_ms // MINUTE_MS, grouping.offset_ms // MINUTE_MS
    group_start = f"(minute - {offset}) / {width} * {width} + {offset}" if width else "0"
    columns = f"{'latency' if latency else _NOTHING}, {'labels' if labels else _NOTHING}"
    for rows_of_period, first, after in cover(first_minute, after_minute, width, offset):
        condition = f"FROM {rows_of_period} model_id IN ({placeholders(models)}) AND minute >= ? AND minute < ? AND n > 0"
        statement = f"SELECT model_id, minute, n, errors, {columns} {condition} LIMIT ?"
        if not latency and not labels:
            counts = f"SELECT model_id, {group_start} AS start, n, errors {condition}"
            sums = f"sum(n), sum(errors), {columns}"
            statement = f"SELECT model_id, start, {sums} FROM ({counts}) AS r GROUP BY 1, 2 LIMIT ?"
        rows = execute(connection, statement, (*models, first, after, remaining + 1))
        for model_id, minute, n, errors, of_latency, of_labels in rows:
            remaining -= 1
            if remaining < 0:
                raise QueryError(
                    f"expected at most {MAX_ROLLUPS:,} counts of models and times, got more; narrow ts, group by "
                    "hours or days, or ask for count and error_rate alone"
                )
            tally = groups.of(minute * MINUTE_MS, models[model_id])
            tally.add(Tally(int(n), int(errors), decode_counts(of_latency)))
            for label, number in decode_counts(of_labels).items():
                tally.count_label(groups.numbers[label], number)
