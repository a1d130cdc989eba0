"""Statistics over inferences, by groups: from the rollups where they can tell, else from the rows themselves."""

import re
import time
from typing import Any, Literal

import msgspec

from store.errors import QueryError
from store.ids import milliseconds
from store.inferences import Inferences
from store.query.json_form import parse
from store.query.request import QueryRequest, decode_body
from store.records import StoredInference, timestamp_text
from store.rollups import MINUTE_MS, Tally
from store.rows import scored, text
from store.upkeep.summing import NAMES, Grouping, Groups, add_rollups, span_of

MAX_ROWS = 50_000
"""Inferences that are counted one by one."""

Metric = Literal["count", "error_rate", "latency_p50", "latency_p95", "latency_p99", "labels"]
_QUANTILES = {"latency_p50": 0.50, "latency_p95": 0.95, "latency_p99": 0.99}
_DEFAULT: tuple[Metric, ...] = ("count", "error_rate", "latency_p50", "latency_p95", "latency_p99")
_UNITS_MS = {"s": 1000, "m": MINUTE_MS, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_WIDTH = re.compile(r"([1-9]\d{0,4})([smhdw])", re.ASCII)
_MONDAY_MS = 4 * 86_400_000
"""The first of all, in 1970: weeks begin with it."""

_MINUTE_US = MINUTE_MS * 1000
_INSTEAD = (
    "narrow it, or filter by model, version, task and ts alone: ts with ge and lt, on whole minutes"
)


class AggregateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to count."""

    where: Any = None
    """A filter as JSON; relative moments are cut to the whole minute."""
    group: list[Any] = []
    """Any of `{"time": "1h"}`, `"model"`, `"version"`, `"task"` and `"label"`."""
    metrics: list[Metric] | None = None
    """All but `labels` by default; of groups by label `count` alone, their predictions."""


class Aggregates(msgspec.Struct, frozen=True):
    """What was counted."""

    groups: list[dict[str, Any]]
    """What tells each, then its metrics; by time, then by name. Latencies are milliseconds."""
    source: Literal["rollups", "inferences"]


_decoder = msgspec.json.Decoder(AggregateRequest)


def decode_request(body: bytes) -> AggregateRequest:
    """Read the body of a request; an empty one counts everything. Raises as `decode_body`."""
    return decode_body(body, _decoder)


def aggregate(inferences: Inferences, request: AggregateRequest) -> Aggregates:
    """Count stored inferences; a QueryError where that means nothing, or is too much."""
    grouping = _grouping(request.group)
    metrics = _metrics(request.metrics, grouping)
    now_us = time.time_ns() // 1000
    now_us -= now_us % _MINUTE_US
    span = span_of(parse(request.where, now_us))
    groups = Groups(grouping)
    if not request.group:
        groups.of(0, {})  # there, however few match
    if span is None or grouping.width_ms % MINUTE_MS:
        _add_rows(inferences, request.where, now_us, groups)
        return Aggregates(_shown(groups, metrics), "inferences")
    latency = bool(metrics & _QUANTILES.keys())
    labels = "labels" in metrics or grouping.by_label
    with inferences.snapshot() as connection:
        add_rollups(connection, span, groups, latency=latency, labels=labels)
    return Aggregates(_shown(groups, metrics), "rollups")


def _add_rows(inferences: Inferences, where: Any, now_us: int, groups: Groups) -> None:
    labels: dict[str, int] = {}
    counted = 0
    asked = QueryRequest(where=where, order="ts", limit=1000)
    for page in inferences.pages(asked, now_us):
        for one in page.inferences:
            tally = groups.of(milliseconds(int(one.id)), _names(one))
            tally.count(one.status, round(one.latency_ms * 1000))
            for prediction in scored(one.predictions) or ():
                if isinstance(prediction.label, str):
                    number = labels.setdefault(text(prediction.label), len(labels))
                    tally.count_label(number, 1)
        counted += len(page.inferences)
        if counted >= MAX_ROWS and page.cursor is not None:
            raise QueryError(
                f"expected at most {MAX_ROWS:,} inferences to count one by one, got more; {_INSTEAD}"
            )
    groups.labels = {number: name for name, number in labels.items()}


def _grouping(group: list[Any]) -> Grouping:
    names, width_ms, offset_ms = [], 0, 0
    for position, item in enumerate(group):
        if item in (*NAMES, "label") and item not in names:
            names.append(item)
            continue
        match = None
        if isinstance(item, dict) and item.keys() == {"time"} and not width_ms:
            match = _WIDTH.fullmatch(str(item["time"]))
        if match is None:
            raise QueryError(
                f'expected group[{position}] to be one of model, version, task, label and {{"time": "1h"}}'
                f" with a number and one of s, m, h, d, w, each once, got {str(item)[:80]!r}"
            )
        width_ms = int(match[1]) * _UNITS_MS[match[2]]
        offset_ms = _MONDAY_MS if match[2] == "w" else 0
    shown = tuple(name for name in NAMES if name in names)
    return Grouping(shown, width_ms, offset_ms, "label" in names)


def _metrics(asked: list[Metric] | None, grouping: Grouping) -> set[Metric]:
    if not grouping.by_label:
        return set(_DEFAULT if asked is None else asked)
    if asked is not None and set(asked) != {"count"}:
        raise QueryError(f"expected metrics of groups by label to be count alone, got {asked}")
    return {"count"}


def _names(one: StoredInference) -> dict[str, str]:
    return {"model": one.model.name, "version": one.model.version, "task": one.task}


def _shown(groups: Groups, metrics: set[Metric]) -> list[dict[str, Any]]:
    grouping, shown = groups.grouping, []
    for (start_ms, *names), tally in sorted(groups.tallies.items()):
        group: dict[str, Any] = {}
        if grouping.width_ms:
            group["time"] = timestamp_text(start_ms)
        group |= zip(grouping.names, names, strict=True)
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
    values: dict[str, Any] = {
        "count": tally.n,
        "error_rate": tally.errors / tally.n if tally.n else None,
    }
    values |= {name: tally.latency_ms(quantile) for name, quantile in _QUANTILES.items()}
    return {name: value for name, value in values.items() if name in metrics}
