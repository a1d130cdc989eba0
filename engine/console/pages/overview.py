"""The overview: what is served, how it goes, what changed, and what arrived just now."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from litestar import Response

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.console.cards import Card, card, told_apart
from quadriga.engine.console.charts import Bar, line
from quadriga.engine.console.frame import PageRequest
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report.drift_texts import headline
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Report
from quadriga.store.maintenance.aggregates import AggregateRequest, Metric, aggregate
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError, QueryError
from quadriga.store.records.records import timestamp_text

BAR_MINUTES = 15
_BARS = 24 * 60 // BAR_MINUTES
_BAR_MS = BAR_MINUTES * 60_000
_NEWEST = 6
_JOBS = 5
_SPARK_WIDTH, _SPARK_HEIGHT = 72, 22
_DAY: Any = {"ts": {"ge": "-24h"}}
_DAY_BEFORE: Any = {"ts": {"ge": "-48h", "lt": "-24h"}}
_COUNTS: list[Metric] = ["count", "error_rate"]
_LATENCIES: list[Metric] = ["count", "error_rate", "latency_p50", "latency_p95"]


def read_overview(
    store: InferenceReader | None,
    entries: list[ModelEntry],
    *,
    reports: ReportStore | None,
) -> dict[str, Any]:
    """Read the content of the page.

    Args:
        store: What the caller sees of the store; None where nothing is stored.
        entries: The models.
        reports: Has the report of what changed; None where nothing is stored.
    """
    changed = [e for e in entries if e.drift is not None and e.drift.calls]
    day: dict[str, Any] = {"total": None, "by_model": {}, "lines": {}}
    newest: list[Card] = []
    if store is not None and any(entry.inferences for entry in entries):
        # A team of very many models and minutes has too much to add up: the page shows the rest.
        with suppress(QueryError):
            day = _last_day(store)
        page = store.query(QueryRequest(limit=_NEWEST))
        newest = told_apart([card(inference) for inference in page.inferences])
    return {
        "day": day,
        "entries": entries,
        "changed": changed,
        "alarm": _alarm(changed, reports),
        "stored": sum(entry.inferences for entry in entries),
        "first_at": min((e.first_at for e in entries if e.first_at), default=None),
        "newest": newest,
    }


def _alarm(changed: list[ModelEntry], reports: ReportStore | None) -> str:
    """Return what the report about the only changed model says; empty for several, or if it is gone."""
    if len(changed) == 1 and changed[0].drift is not None and reports is not None:
        with suppress(NotFoundError, *JSON_ERRORS):
            report = msgspec.json.decode(reports.read(changed[0].drift.report), type=Report)
            return headline(report)
    return ""


def _last_day(store: InferenceReader) -> dict[str, Any]:
    """Return what the last 24 hours had in all and by model, the total of the day before, bars over time, and lines of hours."""
    by_time = _groups(store, _DAY, [{"time": f"{BAR_MINUTES}m"}, "model"], _COUNTS)
    latencies = _groups(store, _DAY, ["model"], _LATENCIES)
    (total,) = _groups(store, _DAY, [], _LATENCIES)
    (before,) = _groups(store, _DAY_BEFORE, [], _COUNTS)
    last_ms = int(time.time() * 1000) // _BAR_MS * _BAR_MS
    starts = [timestamp_text(last_ms - n * _BAR_MS) for n in reversed(range(_BARS + 1))]
    counts, failures = dict.fromkeys(starts, 0), dict.fromkeys(starts, 0.0)
    of_models: dict[str, dict[str, int]] = {}
    for group in by_time:
        start, n = group["time"], group["count"]
        if start in counts:
            counts[start] += n
            failures[start] += n * (group["error_rate"] or 0)
            of_models.setdefault(group["model"], dict.fromkeys(starts, 0))[start] = n
    ends = [*starts[1:], timestamp_text(last_ms + _BAR_MS)]
    return {
        "total": total,
        "before": before["count"],
        "bars": [
            Bar(start, end, n, round(failed))
            for start, end, n, failed in zip(
                starts, ends, counts.values(), failures.values(), strict=True
            )
        ],
        "line": _spark(counts.values()),
        "by_model": {group["model"]: group for group in latencies},
        "lines": {model: _spark(of_model.values()) for model, of_model in of_models.items()},
    }


def _groups(
    store: InferenceReader, where: Any, group: list[Any], metrics: list[Metric]
) -> list[dict[str, Any]]:
    return aggregate(store, AggregateRequest(where=where, group=group, metrics=metrics)).groups


def _spark(values: Iterable[float]) -> str:
    """Return a line of hours, as bars of minutes are too many for it."""
    hour = 60 // BAR_MINUTES
    listed = list(values)[-_BARS:]
    hours = [sum(listed[n : n + hour]) for n in range(0, len(listed), hour)]
    return line(hours, _SPARK_WIDTH, _SPARK_HEIGHT)


def overview_page(services: Services, store: ConsoleStore | None) -> None:
    """Register the handler of the first page; `store` is None where nothing is stored."""
    frame = services.frame

    @services.page("/console")
    async def show_overview(request: PageRequest) -> Response[bytes]:
        """Show what is served, how it goes, what changed, and what arrived just now."""

        def show(inferences: InferenceReader | None) -> Response[bytes]:
            entries = services.models(is_brief=True)
            jobs = store.jobs.within(caller_scope()).all() if store else []
            reports = store.reports.within(caller_scope()) if store else None
            return frame.page(
                "overview",
                page="overview",
                title="Overview",
                jobs=jobs[:_JOBS],
                **read_overview(inferences, entries, reports=reports),
                server=partial(server_url, request, frame.public_url),
                ready_model=next(
                    (e.name for e in entries if any(v.state == "READY" for v in e.versions)), ""
                ),
                bar_minutes=BAR_MINUTES,
                to_time=lambda start, end: frame.link(
                    "/console/inferences", q=f"ts=ge:{start} & ts=lt:{end}"
                ),
            )

        if store is None:
            return await asyncio.to_thread(show, None)
        return await store.queries.run(request, show)
