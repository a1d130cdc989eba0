"""Page with the forms that start an evaluation or a drift comparison, and the handler that starts an export."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
from litestar import Response
from litestar.params import RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.jobs import begin_export
from quadriga.engine.api.models import ModelEntry
from quadriga.engine.api.monitoring.evaluations import begin_evaluation
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.filter_line import (
    as_part,
    check,
    choices,
    comparison_text,
    joined,
    parts,
)
from quadriga.engine.console.frame import (
    FieldProblem,
    PageRequest,
    form_fields,
    one_of,
    problems_of,
    redirect,
    wants_page,
)
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow, window_filter
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.evaluation.parameters import EvaluationParameters, check_parameters
from quadriga.monitor.report.schema import TIME_SLICES
from quadriga.proto.request import note_target
from quadriga.quoting import quoted
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.exchange.dataset_options import Annotated, ExportParameters, Format
from quadriga.store.exchange.export import check_parameters as check_export
from quadriga.store.query.filters.forms import split_url
from quadriga.store.query.filters.syntax import Compare
from quadriga.store.query.inferences import Count, InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import (
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
    StoreError,
)
from quadriga.store.records.ids import time_ms

PATH = "/console/reports/new"
KINDS = ("evaluation", "drift")
PERIODS = {
    "day": "Last 24 hours",
    "today": "Today (UTC)",
    "week": "This week (UTC)",
    "seven_days": "Last 7 days",
    "half": "Later half",
    "own": "Own times",
}
"""Periods that a comparison offers, with their names; `half` of all that the filter finds, `own` for times of the form."""
_MIN_IMAGES = 30
"""Images on each side that an alarm needs."""
_FIELDS = ("model", "q", "by", "period", "from", "to", "before")
_OPTIONS = ("model", "period", "from", "to", "before")
"""Fields that the URL of the form may give, besides its filter."""
_SHOWN_VERSIONS = 4
"""Versions that are named where all of a model are compared together."""

EXPORT_FORMATS: tuple[str, ...] = get_args(Format)
ANNOTATED: tuple[str, ...] = get_args(Annotated)

Side = tuple[str, str]
"""Name and version of a model that has stored inferences."""


def start_forms(services: Services, store: ConsoleStore) -> None:
    """Register the handlers of the forms; each form leads to the page of its job."""
    frame = services.frame
    jobs, inferences, drift = store.jobs, store.inferences, store.drift

    def form(kind: str, values: dict[str, str], error: StoreError | None = None) -> Response[bytes]:
        """Return the page of a form with its values, and what is wrong with them."""
        entries = services.models()
        sides = _sides(entries)
        offered = (
            compared(sides) if kind == "drift" else [(":".join(s), " ".join(s)) for s in sides]
        )
        problems = {} if error is None else problems_of(error)
        store = inferences.within(caller_scope())
        return frame.page(
            "start",
            status=200 if error is None else error.status,
            page="reports",
            title="New report",
            kind=kind,
            values=values,
            problems=problems,
            models=offered,
            periods=PERIODS,
            baselines=_kept_baselines(
                drift.within(caller_scope()), [e.name for e in entries if e.baseline is not None]
            ),
            counts=None if problems else _counts(store, kind, values),
        )

    def start(
        kind: str, request: PageRequest, body: bytes, begin: Callable[[Mapping[str, str]], str]
    ) -> Response[bytes]:
        """Begin the job of a form and lead to it, or show the form again with what is wrong."""
        fields = form_fields(body)
        try:
            check_filter(fields.get("q", ""))
            return redirect(frame.link(f"/console/jobs/{begin(fields)}", then="report"))
        except (QueryError, NotFoundError) as error:
            if not wants_page(request):
                raise
            return form(kind, {name: fields.get(name, "") for name in _FIELDS}, error)

    @services.page(PATH, "monitor")
    def show_form(request: PageRequest) -> Response[bytes]:
        """Show a form with model, version, filter and time of the page that led here."""
        store = inferences.within(caller_scope())
        return form(*values_from_url(query_string(request), _sides(services.models()), store))

    @services.form("/console/reports/compare", "monitor")
    def compare_times(request: PageRequest, body: RawBody) -> Response[bytes]:
        """Compare a period of a model with the one before it, or with a baseline."""

        def begin(fields: Mapping[str, str]) -> str:
            store = inferences.within(caller_scope())
            parameters = drift_parameters(fields, datetime.now(UTC), store)
            job = drift.within(caller_scope()).submit(msgspec.json.encode(parameters))
            note_target(job.id)
            return job.id

        return start("drift", request, body, begin)

    @services.form("/console/reports/evaluate", "monitor")
    def evaluate_one(request: PageRequest, body: RawBody) -> Response[bytes]:
        """Evaluate one version of a model on what a filter finds."""

        def begin(fields: Mapping[str, str]) -> str:
            name, _, version = fields.get("model", "").partition(":")
            if not name or not version:
                raise FieldProblem("model", "expected a model and its version, as name:version")
            parameters = EvaluationParameters(
                name,
                version,
                where=fields.get("q", "") or None,
                by=[_slice_name(key) for key in _slice_keys(fields)],
            )
            check_parameters(parameters)
            _check_has_truth(inferences.within(caller_scope()), parameters)
            return begin_evaluation(jobs, inferences, parameters).id

        return start("evaluation", request, body, begin)

    @services.form("/console/inferences/export", "read", audited=True)
    def export_found(body: RawBody) -> Response[bytes]:
        """Export what a filter finds."""
        fields = form_fields(body)
        check_filter(fields.get("q", ""))
        job = begin_export(jobs, inferences, export_parameters(fields))
        return redirect(frame.link(f"/console/jobs/{job.id}"))


def _sides(entries: list[ModelEntry]) -> list[Side]:
    """Return the versions of models that have stored inferences."""
    return list(
        dict.fromkeys(
            (entry.name, version.version)
            for entry in entries
            for version in entry.versions
            if version.inferences
        )
    )


def compared(sides: list[Side]) -> list[tuple[str, str]]:
    """Return what a drift comparison may be about, with its words: a model, and each version of one that has several."""
    offered = []
    for name in dict.fromkeys(name for name, _ in sides):
        versions = [version for other, version in sides if other == name]
        if len(versions) == 1:
            offered.append((name, f"{name} {versions[0]}"))
            continue
        more = len(versions) - _SHOWN_VERSIONS
        listed = ", ".join(versions[:_SHOWN_VERSIONS]) + (f", {more} more" if more > 0 else "")
        offered.append((name, f"{name}, versions {listed} together"))
        offered += [(f"{name}:{version}", f"{name} {version}") for version in versions]
    return offered


def values_from_url(
    query: str, sides: list[Side], store: InferenceReader
) -> tuple[str, dict[str, str]]:
    """Return the kind of the form, and its first values: model, version and time come out of the filter of the page before.

    Without a model in it, a comparison is about the one with the most inferences that the filter finds; for an evaluation the newest
    inference with ground truth decides, and `others` is another model and version that could be evaluated as well.
    """
    filters, options = split_url(query, ("kind", *_OPTIONS))
    kind = options.get("kind", "")
    kind = kind if kind in KINDS else KINDS[0]
    line = joined(filters if len(filters) == 1 else map(as_part, filter(str.strip, filters)))
    texts = [part.text for part in parts(line)]
    values = dict.fromkeys(_FIELDS, "") | {name: options.get(name, "") for name in _OPTIONS}
    chosen = choices(texts)
    model_part, names = chosen.get("model", ("", ()))
    if len(names) == 1 and not values["model"]:
        version_part, versions = chosen.get("version", ("", ()))
        side = [str(names[0]), *(map(str, versions) if len(versions) == 1 else ())]
        if _is_side(":".join(side), sides):
            values["model"] = ":".join(side)
            taken = {model_part} | ({version_part} if len(side) > 1 else set())
            texts = [text for text in texts if text not in taken]
    if kind == "drift":
        texts = _take_times(texts, values)
        values["before"] = values["before"] or "previous"
    values["q"] = joined(texts)
    if kind == "drift":
        name, _, version = values["model"].partition(":")
        name = name or _most_frequent(store, values["q"])
        is_only = [side[0] for side in sides].count(name) == 1
        values["model"] = f"{name}:{version}" if version and not is_only else name
        if values["from"] or values["to"]:
            values["period"] = "own"
        elif not values["period"]:
            values["period"] = _usable_period(store, values)
    elif tuple(values["model"].split(":", 1)) not in sides:
        line, model = values["q"], values["model"]
        for with_truth in (True, False):
            if newest := _newest(store, model, line, with_truth=with_truth):
                others = joined([*([as_part(line)] if line else []), _not_of(newest)])
                values["model"] = newest
                values["others"] = _newest(store, model, others, with_truth=with_truth)
                break
    return kind, values


def _not_of(side: str) -> str:
    """Return the comparison that leaves out a version of a model, `name:version`."""
    name, _, version = side.partition(":")
    return f"!({joined([comparison_text('model', name), comparison_text('version', version)])})"


def _is_side(text: str, sides: list[Side]) -> bool:
    """Check whether a text is the name of a model that has stored inferences, or its name and version."""
    return any(text in (name, f"{name}:{version}") for name, version in sides)


def _take_times(texts: list[str], values: dict[str, str]) -> list[str]:
    """Set the period to the bounds of time of a filter; return the other parts of the filter."""
    others = []
    for text in texts:
        tree = None
        with suppress(StoreError):  # a filter that cannot be read stays as it is
            tree = QueryRequest(where=text).parse_filter()
        if isinstance(tree, Compare) and tree.field == "ts" and tree.operator in _SIDE_OF_TIME:
            moment = datetime.fromtimestamp(tree.value / 1_000_000, UTC)  # type: ignore[operator]  # a time in microseconds
            in_utc = moment.replace(tzinfo=None).isoformat(timespec="seconds")
            values[_SIDE_OF_TIME[tree.operator]] = in_utc
        else:
            others.append(text)
    return others


_SIDE_OF_TIME = {"ge": "from", "gt": "from", "lt": "to", "le": "to"}


def _most_frequent(store: InferenceReader, line: str) -> str:
    """Return the model with the most inferences that are found; empty for none, or a filter that is none."""
    with suppress(StoreError):
        facets = find_facets(store, FacetsRequest(line or {}, ["model"], 1, 2)).facets
        return "".join(str(value.value) for facet in facets for value in facet.values)
    return ""


def _newest(store: InferenceReader, model: str, line: str, *, with_truth: bool) -> str:
    """Return model and version of the newest inference that is found; empty for none, or a filter that is none."""
    with suppress(StoreError):
        page = store.query(QueryRequest(_where(model, line, with_truth=with_truth), limit=1))
        for inference in page.inferences:
            return f"{inference.model.name}:{inference.model.version}"
    return ""


def _where(model: str, line: str, *, with_truth: bool = False) -> dict[str, Any]:
    """Return the filter of a model's inferences, `name:version` or a name, within a line."""
    name, _, version = model.partition(":")
    return {
        "and": [
            *([{"model": name}] if name else []),
            *([{"version": version}] if version else []),
            *([{"ground_truth": {"exists": True}}] if with_truth else []),
            *([line] if line else []),
        ]
    }


def _usable_period(store: InferenceReader, values: dict[str, str]) -> str:
    """Return the shortest period with enough images on both sides; where none has, the later half."""
    for period in ("day", "seven_days"):
        counts = _counts(store, "drift", values | {"period": period})
        if counts is not None and min(count.count for count in counts) >= _MIN_IMAGES:
            return period
    return "half"


def _counts(store: InferenceReader, kind: str, values: dict[str, str]) -> list[Count] | None:
    """Count the inferences of a period and of the one before, or those to evaluate and those with truth.

    A kept baseline has no count here. None where it takes too long, or a value is none.
    """
    with suppress(StoreError):
        if kind == "drift":
            parameters = drift_parameters(values, datetime.now(UTC), store)
            filters = [
                window_filter(parameters.model, window)
                for window in (parameters.current, parameters.baseline)
                if isinstance(window, StoredWindow)
            ]
        else:
            filters = [
                _where(values["model"], values["q"], with_truth=is_true)
                for is_true in (False, True)
            ]
        return [store.count(QueryRequest(where)) for where in filters]
    return None


def _kept_baselines(drift: DriftService, models: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names of the baselines of some models that windows can be compared with, each with its models."""
    models_of: dict[str, list[str]] = {}
    for model in models:
        with suppress(NotFoundError):  # removed at this moment
            for baseline in drift.list_baselines(model):
                if baseline.state != "failed":
                    models_of.setdefault(baseline.name, []).append(model)
    return [(name, ", ".join(models_of[name])) for name in sorted(models_of)]


def check_filter(line: str) -> None:
    """Raise a `FieldProblem` in the words of the list of inferences if a line is no filter."""
    if line and (problem := check(line)) is not None:
        raise FieldProblem("q", problem.message)


def _check_has_truth(store: InferenceReader, parameters: EvaluationParameters) -> None:
    """Raise a `FieldProblem` if nothing that would be evaluated has truth: the report would only say so later."""
    where = _where(
        f"{parameters.model}:{parameters.version}", parameters.where or "", with_truth=True
    )
    with suppress(NotReadyError, QueryTimeoutError):  # the job finds out, then
        store.wait_for_journal()
        page = store.query(QueryRequest(where, limit=1))
        if not page.inferences and not page.partial:
            raise FieldProblem(
                "q",
                f"no inference of {parameters.model} {parameters.version} that the filter finds has ground truth",
            )


def _slice_keys(fields: Mapping[str, str]) -> list[str]:
    keys = (key.strip() for key in fields.get("by", "").split(","))
    return list(dict.fromkeys(filter(None, keys)))


def _slice_name(key: str) -> str:
    """Return what an evaluation slices by for a key as people write it, `camera_id` for `meta.camera_id`."""
    return key if key in TIME_SLICES or key.startswith("meta.") else f"meta.{key}"


def drift_parameters(
    fields: Mapping[str, str], now: datetime, store: InferenceReader
) -> DriftParameters:
    """Return what a form asks to compare, or raise a `QueryError`; the later half is compared with all before."""
    model, _, version = fields.get("model", "").partition(":")
    if not model:
        raise FieldProblem("model", "expected a model to compare")
    where = fields.get("q", "") or None
    is_half = fields.get("period") == "half" and not _has_times(fields)
    if is_half:
        start, end = _middle(store, _where(fields["model"], where or "")), now
    else:
        start, end = _period(fields, now)
    choice, _, name = fields.get("before", "").partition(":")
    one_of(choice, ("previous", "baseline"), "before")
    before: str | StoredWindow = name
    if choice == "previous":
        try:
            earliest = None if is_half else _moment(start - (end - start))
            before = StoredWindow(earliest, _moment(start), version or None, where)
        except OverflowError as error:
            raise FieldProblem(
                "from", "expected a later period: the one before would have no date"
            ) from error
    elif not before:
        raise FieldProblem("before", "expected the name of a baseline")
    return DriftParameters(
        model,
        version or None,
        where,
        start=_moment(start),
        end=_moment(end),
        baseline=before,
        by=_slice_keys(fields),
    )


def export_parameters(fields: Mapping[str, str]) -> ExportParameters:
    """Return what a form asks to export, without splits, or raise a `QueryError`."""
    format_ = one_of(fields.get("format", ""), EXPORT_FORMATS, "format")
    annotations = one_of(fields.get("annotations", ""), ANNOTATED, "annotations")
    parameters = ExportParameters(
        fields.get("q", "") or None,
        format_,  # type: ignore[arg-type]  # one of its values
        annotations=annotations,  # type: ignore[arg-type]
    )
    check_export(parameters)
    return parameters


def _has_times(fields: Mapping[str, str]) -> bool:
    return bool(fields.get("from") or fields.get("to"))


def _middle(store: InferenceReader, where: dict[str, Any]) -> datetime:
    """Return the time from which on there is the later half of the inferences that a filter finds, of many the newest."""
    ids = next(store.matching_ids(where, descending=True), [])
    if len(ids) < 2:
        raise FieldProblem("q", f"expected two inferences or more to compare, found {len(ids)}")
    return datetime.fromtimestamp(time_ms(ids[len(ids) // 2]) / 1000, UTC)


def _period(fields: Mapping[str, str], now: datetime) -> tuple[datetime, datetime]:
    """Return start and end of the period that a form has chosen; times of one's own count before its names, and end now without an end."""
    period, has_end = fields.get("period", ""), bool(fields.get("to"))
    if _has_times(fields) or period == "own":
        start = _own_time(fields, "from", "beginning")
        end = _own_time(fields, "to", "end") if has_end else now
        if start >= end:
            raise FieldProblem("to", "expected the period to start before it ends")
        return start, end
    one_of(period, tuple(PERIODS), "period")
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = {
        "day": now - timedelta(days=1),
        "today": today,
        "week": today - timedelta(days=today.weekday()),
        "seven_days": now - timedelta(days=7),
    }
    return starts[period], now


def _own_time(fields: Mapping[str, str], field: str, side: str) -> datetime:
    """Return the beginning or end of the period, which is in UTC where it says nothing else."""
    text = fields.get(field, "")
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise FieldProblem(
            field,
            f"expected the {side} of the period as 2026-01-31T08:00, got {quoted(text, 40) if text else 'none'}",
        ) from error


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
