"""Forms that start jobs: a drift comparison, an evaluation of one model version, and an export of what a filter finds."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
from litestar import Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.jobs import begin_export
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.monitoring.evaluations import begin_evaluation
from quadriga.engine.console.filter_line import joined
from quadriga.engine.console.frame import form_fields, opens, redirect, single_field
from quadriga.engine.console.search import check
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.engine.console.texts import text
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.evaluation.parameters import EvaluationParameters, check_parameters
from quadriga.proto.request import current_caller, note_target
from quadriga.quoting import quoted
from quadriga.store.exchange.dataset_options import Annotated
from quadriga.store.exchange.export import ExportParameters, Format
from quadriga.store.exchange.export import check_parameters as check_export
from quadriga.store.query.filters.forms import split_url
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import (
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
)

PERIODS = ("day", "today", "week", "seven_days")
"""Periods that a comparison offers: the last 24 hours, today, this week, and the last 7 days."""
_SHOWN_VERSIONS = 4
"""Versions that are named where all of a model are compared together."""

EXPORT_FORMATS: tuple[str, ...] = get_args(Format)
ANNOTATED: tuple[str, ...] = get_args(Annotated)


class StartChoices(msgspec.Struct, frozen=True, kw_only=True):
    """What the forms offer, and what the URL has chosen."""

    sides: list[tuple[str, str]]
    """Names and versions of models that have answered."""
    chosen: str
    """Model, or model:version, that is chosen first; empty for none."""
    line: str
    """Filter of both forms."""
    baselines: list[tuple[str, str]] = []
    """Names of kept baselines, with the models that have them."""
    periods: tuple[str, ...] = PERIODS

    @property
    def compared(self) -> list[tuple[str, str]]:
        """What a comparison of times may be about, with its words: a model, and each version of one that has several."""
        choices = []
        for name in dict.fromkeys(name for name, _ in self.sides):
            versions = [version for other, version in self.sides if other == name]
            if len(versions) == 1:
                choices.append((name, f"{name} {versions[0]}"))
                continue
            listed = ", ".join(versions[:_SHOWN_VERSIONS])
            more = len(versions) - _SHOWN_VERSIONS
            listed += f", {text('more_values', n=more)}" if more > 0 else ""
            choices.append((name, text("versions_together", model=name, versions=listed)))
            choices += [(f"{name}:{version}", f"{name} {version}") for version in versions]
        return choices

    @property
    def chosen_to_compare(self) -> str:
        """The one of `compared` that is chosen first; empty for none."""
        values = [value for value, _ in self.compared]
        model = self.chosen.partition(":")[0]
        return next((value for value in (self.chosen, model) if value in values), "")


def start_choices(
    entries: list[ModelEntry], drift: DriftService, query: str
) -> StartChoices | None:
    """Return what the forms offer, with `model` and `q` of a URL chosen; None for callers who may not start anything."""
    if not opens(current_caller(), "monitor"):
        return None
    filters, options = split_url(query, ("model",))
    sides = dict.fromkeys(
        (entry.name, version.version)
        for entry in entries
        for version in entry.versions
        if version.inferences
    )
    return StartChoices(
        sides=list(sides),
        chosen=options.get("model", ""),
        line=joined(part.strip() for part in filters if part.strip()),
        baselines=_kept_baselines(drift, [e.name for e in entries if e.baseline is not None]),
    )


def _kept_baselines(drift: DriftService, models: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names of the baselines of some models that windows can be compared with, each with its models."""
    models_of: dict[str, list[str]] = {}
    for model in models:
        with suppress(NotFoundError):  # removed at this moment
            for baseline in drift.list_baselines(model):
                if baseline.state != "failed":
                    models_of.setdefault(baseline.name, []).append(model)
    return [(name, ", ".join(models_of[name])) for name in sorted(models_of)]


def start_forms(services: Services, store: ConsoleStore) -> list[HTTPRouteHandler]:
    """Return the handlers, each of which leads to the page of its job."""
    frame, options = services.frame, services.options
    jobs, inferences, drift = store.jobs, store.inferences, store.drift
    form_options = {**options, "status_code": 303, "sync_to_thread": True}

    def to_job(job_id: str) -> Response[bytes]:
        return redirect(frame.link(f"/console/jobs/{job_id}"))

    @post("/console/reports/compare", need="monitor", **form_options)
    def compare_times(body: RawBody) -> Response[bytes]:
        """Compare a period of a model with the one before it, or with a baseline."""
        fields = form_fields(body)
        _check_filter(single_field(fields, "q"))
        parameters = drift_parameters(fields, datetime.now(UTC))
        job = drift.within(caller_scope()).submit(msgspec.json.encode(parameters))
        note_target(job.id)
        return to_job(job.id)

    @post("/console/reports/evaluate", need="monitor", **form_options)
    def evaluate_one(body: RawBody) -> Response[bytes]:
        """Evaluate one version of a model on what a filter finds."""
        fields = form_fields(body)
        name, _, version = single_field(fields, "model").partition(":")
        if not name or not version:
            raise QueryError("expected a model and its version, as name:version")
        line = single_field(fields, "q")
        store = inferences.within(caller_scope())
        _check_filter(line)
        parameters = EvaluationParameters(name, version, where=line or None)
        check_parameters(parameters)
        _check_has_truth(store, parameters)
        return to_job(begin_evaluation(jobs, inferences, parameters).id)

    @post("/console/inferences/export", need="read", audited=True, **form_options)
    def export_found(body: RawBody) -> Response[bytes]:
        """Export what a filter finds."""
        fields = form_fields(body)
        _check_filter(single_field(fields, "q"))
        parameters = export_parameters(fields)
        return to_job(begin_export(jobs, inferences, parameters).id)

    return [compare_times, evaluate_one, export_found]


def _check_filter(line: str) -> None:
    """Raise a `QueryError` in the words of the list of inferences if a line is no filter."""
    if line and (problem := check(line)) is not None:
        raise QueryError(problem.message)


def _check_has_truth(store: InferenceReader, parameters: EvaluationParameters) -> None:
    """Raise a `QueryError` if nothing that would be evaluated has truth: the report would only say so later."""
    where: Any = [
        {"model": parameters.model, "version": parameters.version},
        {"ground_truth": {"exists": True}},
        *([parameters.where] if parameters.where else []),
    ]
    with suppress(NotReadyError, QueryTimeoutError):  # the job finds out, then
        store.wait_for_journal()
        page = store.query(QueryRequest({"and": where}, limit=1))
        if not page.inferences and not page.partial:
            raise QueryError(
                text("no_truth_to_evaluate", model=f"{parameters.model} {parameters.version}")
            )


def drift_parameters(fields: dict[str, list[str]], now: datetime) -> DriftParameters:
    """Return what a form asks to compare, or raise a `QueryError`."""
    model, _, version = single_field(fields, "model").partition(":")
    if not model:
        raise QueryError("expected a model to compare")
    where = single_field(fields, "q") or None
    start, end = _period(fields, now)
    choice, _, name = single_field(fields, "before").partition(":")
    _one_of(choice, ("previous", "baseline"), "before")
    before: str | StoredWindow = name
    if choice == "previous":
        try:
            before = StoredWindow(
                _moment(start - (end - start)), _moment(start), version or None, where
            )
        except OverflowError as error:
            raise QueryError(
                "expected a later period: the one before would have no date"
            ) from error
    elif not before:
        raise QueryError("expected the name of a baseline")
    by = [key.strip() for key in single_field(fields, "by").split(",")]
    return DriftParameters(
        model,
        version or None,
        where,
        start=_moment(start),
        end=_moment(end),
        baseline=before,
        by=list(dict.fromkeys(filter(None, by))),
    )


def export_parameters(fields: dict[str, list[str]]) -> ExportParameters:
    """Return what a form asks to export, without splits, or raise a `QueryError`."""
    format_ = _one_of(single_field(fields, "format"), EXPORT_FORMATS, "format")
    annotations = _one_of(single_field(fields, "annotations"), ANNOTATED, "annotations")
    parameters = ExportParameters(
        single_field(fields, "q") or None,
        format_,  # type: ignore[arg-type]  # one of its values
        annotations=annotations,  # type: ignore[arg-type]
    )
    check_export(parameters)
    return parameters


def _one_of(value: str, allowed: tuple[str, ...], name: str) -> str:
    if value not in allowed:
        raise QueryError(
            f"expected {name} to be one of {', '.join(allowed)}, got {quoted(value, 40)}"
        )
    return value


def _period(fields: dict[str, list[str]], now: datetime) -> tuple[datetime, datetime]:
    """Return start and end of the period that a form has chosen; times of one's own count before its names."""
    if single_field(fields, "from") or single_field(fields, "to"):
        start = _own_time(single_field(fields, "from"), "beginning")
        end = _own_time(single_field(fields, "to"), "end")
        if start >= end:
            raise QueryError("expected the period to start before it ends")
        return start, end
    period = _one_of(single_field(fields, "period"), PERIODS, "period")
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = {
        "day": now - timedelta(days=1),
        "today": today,
        "week": today - timedelta(days=today.weekday()),
        "seven_days": now - timedelta(days=7),
    }
    return starts[period], now


def _own_time(text: str, side: str) -> datetime:
    """Return the beginning or end of the period, which is in UTC where it says nothing else."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise QueryError(
            f"expected the {side} of the period as 2026-01-31T08:00, got {quoted(text, 40) if text else 'none'}"
        ) from error


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
