"""Drift reports in a data folder, as jobs leave them, for tests of what shows them."""

import time
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.monitor.report.saved import PAGE_FILE, REPORT_FILE
from quadriga.monitor.report.schema import (
    Data,
    Effect,
    Histogram,
    Level,
    Report,
    ReportedModel,
    Signal,
    Window,
)
from quadriga.store.jobs.jobs import Job, Result, write_job
from quadriga.store.records.records import timestamp_text
from quadriga.store.records.scope import EVERYTHING, Scope

MODEL = "shapes-detector"
START_MS = 1_790_000_000_000
HOUR_MS = 3_600_000


def numeric(name: str, before: float, after: float, /, **fields: Any) -> Signal:
    """Return a numeric signal whose baseline reaches 10 around its mean; it has an alarm if the mean moved by one."""
    shift = abs(after - before)
    defaults: dict[str, Any] = {
        "alarm": shift >= 1,
        "p_adjusted": 0.001 if shift >= 1 else 0.7,
        "before": Level(before, before - 10, before + 10),
        "after": Level(after, after - 10, after + 10),
        "shift": shift,
        "histogram": Histogram([0.0, 10.0, 20.0], [1, 9], [9, 1]),
    }
    effect = Effect("wasserstein_iqr", shift / 10, 0.1)
    return Signal(name, "numeric", "ks", effect, (1000, 200), **(defaults | fields))


def categorical(name: str, labels: list[str], before: list[int], after: list[int]) -> Signal:
    """Return a signal of labels with an alarm."""
    histogram = Histogram(list(labels), before, after)
    effect = Effect("total_variation", 0.4, 0.05)
    return Signal(
        name, "categorical", "chi_square", effect, (1000, 200), p_adjusted=0.002, alarm=True, histogram=histogram,
    )  # fmt: skip


def drift_report(number: int, *signals: Signal, model: str = MODEL, **fields: Any) -> Report:
    """Return the report of an hour."""
    start_ms = START_MS + number * HOUR_MS
    start, end = (timestamp_text(start_ms + at_ms) for at_ms in (0, HOUR_MS - 1))
    defaults: dict[str, Any] = {
        "id": report_id(number),
        "created": timestamp_text(start_ms + HOUR_MS + 60_000),
        "status": "drift" if any(signal.alarm for signal in signals) else "ok",
        "data": Data(
            Window(start, end, 200),
            Window(timestamp_text(START_MS - 9 * HOUR_MS), timestamp_text(START_MS - 1), 1000),
        ),
        "model": ReportedModel(model, "1", "ab" * 32),
        "signals": list(signals),
    }
    return Report(kind="drift", task="OBJECT_DETECTION", **(defaults | fields))


def report_id(number: int) -> str:
    """Return the id of the report of an hour."""
    return f"{(START_MS + number * HOUR_MS) * 1_000_000:019d}-{number:04x}"


def keep_report(settings: Settings, report: Report, scope: Scope = EVERYTHING, **parameters: Any) -> Path:  # fmt: skip
    """Write a report as the result of its job with these parameters, and return the job's folder."""
    folder: Path = settings.jobs_directory / report.id
    folder.mkdir(parents=True)
    encoded = msgspec.json.encode(report)
    (folder / REPORT_FILE).write_bytes(encoded)
    (folder / PAGE_FILE).write_text("<!doctype html><title>Report</title>")
    ended = timestamp_text(time.time_ns() // 1_000_000)
    job = Job(
        report.id, "drift", {"model": report.model.name, **parameters}, report.created, "succeeded", ended_at=ended,
        result=Result(REPORT_FILE, len(encoded)), scope=msgspec.UNSET if scope.is_everything else scope,
    )  # fmt: skip
    write_job(folder, job)
    return folder
