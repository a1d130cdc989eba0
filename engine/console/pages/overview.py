"""The overview: what is served, how it goes, what changed, and what arrived just now."""

import asyncio
import shlex
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.session_cookies import server_url
from quadriga.engine.console.cards import Card, card, told_apart
from quadriga.engine.console.charts import IntervalMarks, Timeline, interval, line, timeline
from quadriga.engine.console.frame import PageRequest, page_response
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report.drift_texts import headline
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Report
from quadriga.proto.access import ANYBODY
from quadriga.proto.request import current_caller
from quadriga.store.jobs.jobs import Job
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
_AXIS_WIDTH = 128
_DAY: Any = {"ts": {"ge": "-24h"}}
_DAY_BEFORE: Any = {"ts": {"ge": "-48h", "lt": "-24h"}}
_COUNTS: list[Metric] = ["count", "error_rate"]
_LATENCIES: list[Metric] = ["count", "error_rate", "latency_p50", "latency_p95"]


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """The inferences of the last 24 hours."""

    count: int
    change_percent: int | None
    """How many more than the day before, in percent of those; None if there were none."""
    failed: int
    failed_percent: float
    p50_ms: float | None
    p95_ms: float | None
    line: str


class OverviewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the table."""

    entry: ModelEntry
    state: str
    """State of its best version: that which answers."""
    version: str
    reason: str
    day_count: int
    p95_ms: float | None
    failed_percent: float | None
    line: str
    quality: IntervalMarks | None
    """Value and interval of the version's last evaluation; None without one of this version alone."""
    is_quality_of_others: bool
    """Whether the last evaluation is of another version, or of several together."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the page."""

    rows: list[OverviewRow]
    served: int
    changed: list[ModelEntry]
    """Models whose last drift report has an alarm that nobody acknowledged or muted."""
    alarm: str
    """Headline of the report about the only one of them; empty for several."""
    stored: int
    first_at: str | None
    day: Day | None
    """None where nothing is stored, or the store does not answer in time."""
    bars: Timeline
    newest: list[Card]
    jobs: list[Job]


def image_command(url: str, entries: list[ModelEntry], *, needs_key: bool) -> tuple[str, str]:
    """Return a shell command that sends an image file to the first model that is ready, and the model; empty without one.

    Args:
        url: URL of the server, without a slash at its end.
        entries: The models.
        needs_key: Whether requests need a key.
    """
    model = next((e.name for e in entries if any(v.state == "READY" for v in e.versions)), "")
    if not model:
        return "", ""
    path = "/infer" if len(entries) == 1 else f"/api/serve/serve-model-{model}-pred/infer"
    key = " \\\n  -H 'Authorization: Bearer YOUR-KEY'" if needs_key else ""
    command = f"curl {shlex.quote(url + path)} -H 'Content-Type: image/jpeg' \\\n  --data-binary @image.jpg{key}"
    return command, model


def read_overview(
    store: InferenceReader | None,
    entries: list[ModelEntry],
    jobs: list[Job],
    *,
    reports: ReportStore | None,
) -> Overview:
    """Read the content of the page.

    Args:
        store: What the caller sees of the store; None where nothing is stored.
        entries: The models.
        jobs: The jobs, the newest first.
        reports: Has the report of what changed; None where nothing is stored.
    """
    changed = [e for e in entries if e.drift is not None and e.drift.calls]
    bars, day = timeline([]), None
    by_model: dict[str, _ModelDay] = {}
    newest: list[Card] = []
    if store is not None and any(entry.inferences for entry in entries):
        # A team of very many models and minutes has too much to add up: the page shows the rest.
        with suppress(QueryError):
            day, bars, by_model = _last_day(store)
        page = store.query(QueryRequest(limit=_NEWEST))
        newest = told_apart([card(inference) for inference in page.inferences])
    return Overview(
        rows=[_row(entry, by_model.get(entry.name)) for entry in entries],
        served=sum(entry.served for entry in entries),
        changed=changed,
        alarm=_alarm(changed, reports),
        stored=sum(entry.inferences for entry in entries),
        first_at=min((e.first_at for e in entries if e.first_at), default=None),
        day=day,
        bars=bars,
        newest=newest,
        jobs=jobs[:_JOBS],
    )


def _alarm(changed: list[ModelEntry], reports: ReportStore | None) -> str:
    """Return what the report about the only changed model says; empty for several, or if it is gone."""
    if len(changed) == 1 and changed[0].drift is not None and reports is not None:
        with suppress(NotFoundError, *JSON_ERRORS):
            report = msgspec.json.decode(reports.read(changed[0].drift.report), type=Report)
            return headline(report)
    return ""


class _ModelDay(msgspec.Struct, frozen=True):
    """The last 24 hours of a model."""

    count: int
    failed_percent: float
    p95_ms: float | None
    counts: list[int]


def _last_day(store: InferenceReader) -> tuple[Day, Timeline, dict[str, _ModelDay]]:
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
    bars = timeline(
        [(s, e, counts[s], round(failures[s])) for s, e in zip(starts, ends, strict=True)]
    )
    failed_rate = total["error_rate"] or 0.0
    day = Day(
        count=total["count"],
        change_percent=_change(total["count"], before["count"]),
        failed=round(total["count"] * failed_rate),
        failed_percent=100 * failed_rate,
        p50_ms=total["latency_p50"],
        p95_ms=total["latency_p95"],
        line=_spark(counts.values()),
    )
    by_model = {
        group["model"]: _ModelDay(
            group["count"],
            100 * (group["error_rate"] or 0.0),
            group["latency_p95"],
            list(of_models.get(group["model"], {}).values()),
        )
        for group in latencies
    }
    return day, bars, by_model


def _groups(
    store: InferenceReader, where: Any, group: list[Any], metrics: list[Metric]
) -> list[dict[str, Any]]:
    return aggregate(store, AggregateRequest(where=where, group=group, metrics=metrics)).groups


def _change(count: int, before: int) -> int | None:
    return round(100 * (count - before) / before) if before else None


def _spark(values: Iterable[float]) -> str:
    """Return a line of hours, as bars of minutes are too many for it."""
    hour = 60 // BAR_MINUTES
    listed = list(values)[-_BARS:]
    hours = [sum(listed[n : n + hour]) for n in range(0, len(listed), hour)]
    return line(hours, _SPARK_WIDTH, _SPARK_HEIGHT)


def _row(entry: ModelEntry, day: _ModelDay | None) -> OverviewRow:
    served = [version for version in entry.versions if version.state is not None]
    best = next((v for v in served if v.state == "READY"), served[0] if served else None)
    metric = None if entry.evaluation is None else entry.evaluation.headline
    value = None if metric is None else metric.value
    version = best.version if best else entry.versions[0].version if entry.versions else ""
    is_other = entry.evaluation is not None and not entry.evaluation.is_of(version)
    return OverviewRow(
        entry=entry,
        state="" if best is None or best.state is None else best.state,
        version=version,
        reason=best.reason if best else "",
        day_count=day.count if day else 0,
        p95_ms=day.p95_ms if day else None,
        failed_percent=day.failed_percent if day and day.count else None,
        line=_spark(day.counts) if day else "",
        is_quality_of_others=is_other and value is not None,
        quality=None
        if value is None or metric is None or is_other
        else interval(value, metric.ci95, _AXIS_WIDTH),
    )


def overview_page(services: Services, store: ConsoleStore | None) -> HTTPRouteHandler:
    """Return the handler of the first page; `store` is None where nothing is stored."""
    frame, options = services.frame, services.options

    @get("/console", need="read", **options)
    async def show_overview(request: PageRequest) -> Response[bytes]:
        """Show what is served, how it goes, what changed, and what arrived just now."""

        def show(inferences: InferenceReader | None) -> str:
            entries = services.models(is_brief=True)
            jobs = store.jobs.within(caller_scope()).all() if store else []
            reports = store.reports.within(caller_scope()) if store else None
            needs_key = current_caller() is not ANYBODY
            overview = read_overview(inferences, entries, jobs, reports=reports)
            command, model = "", ""
            if not overview.stored:
                url = server_url(request, frame.public_url)
                command, model = image_command(url, entries, needs_key=needs_key)
            return frame.html(
                "overview",
                page="overview",
                title="Overview",
                o=overview,
                has_store=store is not None,
                command=command,
                command_model=model,
                needs_key=needs_key,
                bar_minutes=BAR_MINUTES,
                to_time=lambda bar: frame.link(
                    "/console/inferences", q=f"ts=ge:{bar.start} & ts=lt:{bar.end}"
                ),
            )

        if store is None:
            return page_response(await asyncio.to_thread(show, None))
        return page_response(await store.queries.run(request, show))

    return show_overview
