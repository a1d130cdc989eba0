"""Two models, or two versions of one, side by side: how good both are on the same images, and where their answers differ."""

from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
from litestar import Response
from litestar.params import RawBody

from quadriga.engine.api.access import caller_scope
from quadriga.engine.api.monitoring.evaluations import begin_evaluation
from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import Meant, card, names_of
from quadriga.engine.console.filter_line import absent, as_part, check, comparison_text, joined
from quadriga.engine.console.frame import (
    Frame,
    PageRequest,
    form_fields,
    redirect,
)
from quadriga.engine.console.pages.drift_report import slice_comparison
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.evaluation.parameters import (
    MAX_SLICE_KEYS,
    EvaluationParameters,
    OtherModel,
    check_parameters,
)
from quadriga.monitor.evaluation.stored import CellItems
from quadriga.monitor.report import metric_texts
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Comparison, Metric, Report
from quadriga.store.browsing.comparison import (
    Disagreements,
    DisagreementsRequest,
    find_disagreements,
)
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.jobs.jobs import ENDED, Job, Jobs
from quadriga.store.query.filters.forms import split_url
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.model_counts import stored_versions
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import JSON_ERRORS, NotFoundError, QueryError, QueryTimeoutError
from quadriga.store.records.records import StoredInference

PATH = "/console/compare"
SHOWN = 12
"""Images of a page."""
LEAST_SCORE = 0.5
"""Score from which predictions of boxes are compared, and drawn."""
_MAX_VALUES = 20
"""Values of a key that is offered to slice by."""
_MAX_CHOSEN = 5
"""Keys that are chosen before somebody chooses."""
_TIMES = ("hour", "day")
_WITH_TRUTH = comparison_text("ground_truth", True, "exists")


class Side(msgspec.Struct, frozen=True):
    """A version of a model that has stored inferences."""

    name: str
    version: str

    @property
    def text(self) -> str:
        """Name and version as the API and the URL have them."""
        return f"{self.name}:{self.version}"


class CompareOptions(msgspec.Struct, frozen=True):
    """What the URL says."""

    a: str = ""
    b: str = ""
    line: str = ""
    cursor: str = ""
    job: str = ""
    """Id of the evaluation that was begun on the page."""


def compare_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame = services.frame
    queries = store.queries

    @services.page(PATH)
    async def show_comparison(request: PageRequest) -> Response[bytes]:
        """Show two models side by side."""
        comparison = _comparison_from_url(query_string(request))

        def show(inferences: InferenceReader) -> Response[bytes]:
            choices = _choices(inferences)
            pair = _pair(comparison, choices)
            problem = check(comparison.line) if comparison.line else None
            content = dict[str, Any].fromkeys(("quality", "images", "job", "keys", "missing"))
            if pair is not None and problem is None:
                try:
                    content = _content(inferences, store, frame, pair=pair, comparison=comparison)
                except (QueryError, NotFoundError) as error:
                    problem = absent(comparison.line, str(error))
            return frame.page(
                "compare",
                status=400 if problem else 200,
                page="compare",
                title=_title(pair, content["quality"]),
                choices=choices,
                pair=pair,
                line=comparison.line,
                problem=problem,
                is_later_page=bool(comparison.cursor),
                to=lambda **changes: _link(frame, pair, comparison.line, **changes),
                **content,
            )

        return await queries.run(request, show)

    @services.form(f"{PATH}/evaluate", "monitor")
    def evaluate_both(body: RawBody) -> Response[bytes]:
        """Evaluate both models on the images that both have answered, and go back to the page."""
        fields = form_fields(body)
        comparison = CompareOptions(fields.get("a", ""), fields.get("b", ""))
        inferences = store.inferences.within(caller_scope())
        pair = _pair(comparison, _choices(inferences)) if comparison.b else None
        if pair is None:
            raise QueryError("expected two models, or two versions of one, that have answered")
        first, second = pair
        line = fields.get("q", "")
        parameters = EvaluationParameters(
            second.name,
            second.version,
            where=line or None,
            by=list(dict.fromkeys(fields.getall("by", [])))[:MAX_SLICE_KEYS],
            compare=[OtherModel(first.name, first.version)],
        )
        check_parameters(parameters)
        job = begin_evaluation(store.jobs, store.inferences, parameters)
        return redirect(_link(frame, pair, line, job=job.id))


def _comparison_from_url(query: str) -> CompareOptions:
    """Read the query of a URL, in which each other parameter is a comparison."""
    filters, options = split_url(query, ("a", "b", "cursor", "job"))
    return CompareOptions(line=joined(text for text in filters if text.strip()).strip(), **options)


def _choices(store: InferenceReader) -> list[Side]:
    """Return the versions that have answered, those of replays among them, in order of names, the oldest first."""
    with store.snapshot() as connection:
        sides = {Side(of.name, of.version) for of in stored_versions(connection, store.scope)}
    return sorted(sides, key=lambda side: (side.name, len(side.version), side.version))


def _pair(comparison: CompareOptions, choices: list[Side]) -> tuple[Side, Side] | None:
    """Return the sides that were asked for; without a second one, two versions of the first, or of any model that has two.

    Raises:
        NotFoundError: One of them is not known.
        QueryError: They are the same.
    """
    if not comparison.b:
        pairs = [
            (a, b)
            for a, b in pairwise(choices)
            if a.name == b.name and comparison.a in {"", a.name, a.text, b.text}
        ]
        return next((pair for pair in reversed(pairs) if pair[0].name == pairs[0][0].name), None)
    sides = {side.text: side for side in choices}
    for name in (comparison.a, comparison.b):
        if name not in sides:
            raise NotFoundError(
                f"expected two models that have answered, as name:version, got {name[:200]!r}"
            )
    if comparison.a == comparison.b:
        raise QueryError("expected two different models, or two versions of one")
    return sides[comparison.a], sides[comparison.b]


def _content(
    store: InferenceReader,
    stored: ConsoleStore,
    frame: Frame,
    *,
    pair: tuple[Side, Side],
    comparison: CompareOptions,
) -> dict[str, Any]:
    first, second = pair
    request = DisagreementsRequest(
        first.text,
        second.text,
        comparison.line or None,
        limit=SHOWN,
        cursor=comparison.cursor or None,
    )
    scope = caller_scope()
    job = _job(stored.jobs.within(scope), comparison.job)
    quality = find_quality(
        stored.reports.within(scope),
        (first.name, first.version),
        (second.name, second.version),
        line=comparison.line,
        report_id=job.id if job is not None and job.state == "succeeded" else "",
        link=frame.link,
    )
    images = find_disagreements(store, request)
    return {
        "quality": quality,
        "images": images,
        "rows": [
            (
                card(differing.a, meant=_only(differing.a, differing.only_a)),
                card(differing.b, meant=_only(differing.b, differing.only_b)),
                names_of(differing.a, differing.only_a),
                names_of(differing.b, differing.only_b),
            )
            for differing in images.disagreements
        ],
        "missing": _missing(store, second, comparison, images),
        "keys": _slice_keys(store, second, comparison.line),
        "job": job if job is not None and job.state != "succeeded" else None,
        "is_running": job is not None and job.state not in ENDED,
    }


def _only(inference: StoredInference, positions: Collection[int]) -> Meant:
    """Return the predictions that the other model has not, from which the page draws all."""
    return Meant(cells={inference.id: CellItems(wrong=positions)}, least_score=LEAST_SCORE)


def _missing(
    store: InferenceReader, second: Side, comparison: CompareOptions, images: Disagreements
) -> str:
    """Return what both cannot be evaluated without: `images` in common, or `truth` of them; empty for nothing."""
    is_all = not comparison.cursor and images.cursor is None and not images.partial
    if is_all and not images.compared:
        return "images"
    where = _answers(second.name, second.version, _WITH_TRUTH, as_part(comparison.line))
    with suppress(QueryTimeoutError):
        page = store.query(QueryRequest(where, limit=1))
        return "" if page.inferences or page.partial else "truth"
    return ""


def _answers(name: str, version: str, *further: str) -> str:
    """Return the filter of what a version of a model answered, within further filters that are not empty."""
    own = comparison_text("model", name), comparison_text("version", version)
    return joined([*own, *filter(None, further)])


def _job(jobs: Jobs, job_id: str) -> Job | None:
    if job_id:
        with suppress(NotFoundError):  # removed since
            return jobs.read(job_id)
    return None


def _slice_keys(store: InferenceReader, side: Side, line: str) -> dict[str, bool]:
    """Return the keys of the metadata with few values, and times; true for those that are chosen, the first of the metadata."""
    where = _answers(side.name, side.version, line and f"({line})")
    facets = find_facets(store, FacetsRequest(where, None, 1, 2)).facets
    fields = [
        facet.field
        for facet in facets
        if facet.field.startswith("meta.")
        and facet.type in {"string", "boolean"}
        and 1 < facet.distinct <= _MAX_VALUES
    ]
    fields = fields[: MAX_SLICE_KEYS - len(_TIMES)]
    return {field: field in fields[:_MAX_CHOSEN] for field in (*fields, *_TIMES)}


class DifferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The difference over all images, or those of a slice."""

    name: str
    """Name of the slice; empty for all."""
    link: str
    """Link to the second model's images with truth there, also those that the first did not answer; empty without a filter
    for them."""
    n: int
    """Number of images that both have answered, and that have truth."""
    first: float | None
    """The metric of the first model; None where a report has no such number."""
    metric: Metric
    """The difference."""


class ComparedQuality(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation that compared the two."""

    report_id: str
    report: Report
    comparison: Comparison
    rows: list[DifferenceRow]


def _title(pair: tuple[Side, Side] | None, quality: ComparedQuality | None) -> str:
    if pair is None:
        return "Compare"
    if quality is not None:
        return metric_texts.comparison_sentence(quality.report, quality.comparison)
    first, second = pair
    if first.name == second.name:
        return f"Version {second.version} of {first.name} beside version {first.version}"
    return f"{second.text} beside {first.text}"


def _link(frame: Frame, pair: tuple[Side, Side] | None, line: str, **changes: str | None) -> str:
    sides = {} if pair is None else {"a": pair[0].text, "b": pair[1].text}
    return frame.link(PATH, **sides, q=line, **changes)


_MAX_REPORTS = 20
"""Evaluations of the second model that are looked through."""
_decoder = msgspec.json.Decoder(Report)


def find_quality(
    reports: ReportStore,
    first: tuple[str, str],
    second: tuple[str, str],
    *,
    line: str,
    report_id: str,
    link: Callable[..., str],
) -> ComparedQuality | None:
    """Return the newest evaluation of the second model that compared it with the first; None without one.

    Args:
        reports: The reports that the caller may see.
        first: Name and version of the model that the other is compared with.
        second: Name and version.
        line: Filter of the evaluation.
        report_id: The report to show, if it is one of these; empty for the newest.
        link: Makes the link of a path with parameters.
    """
    summaries = [
        summary
        for summary in reports.all()
        if summary.kind == "evaluation"
        and (summary.model.name, summary.model.version) == second
        and report_id in {"", summary.id}
    ]
    for summary in summaries[:_MAX_REPORTS]:
        with suppress(NotFoundError, *JSON_ERRORS):  # removed since, or damaged
            report = _decoder.decode(reports.read(summary.id))
            comparison = _comparison_with(report, first)
            if comparison is not None and (report.data.current.filter or "") == line:
                return _quality(summary.id, report, comparison, line=line, link=link)
    return None


def _comparison_with(report: Report, model: tuple[str, str]) -> Comparison | None:
    for comparison in report.comparisons:
        if (comparison.model.name, comparison.model.version) == model and comparison.differences:
            return comparison
    return None


def _quality(
    report_id: str, report: Report, comparison: Comparison, *, line: str, link: Callable[..., str]
) -> ComparedQuality:
    measured = [("", "", comparison.n, comparison.differences[0], comparison.metrics)]
    for part in comparison.slices:
        if part.differences:
            where = (
                slice_comparison(part.by, part.value)
                if part.by.startswith("meta.") and part.value is not None
                else ""
            )
            name = metric_texts.slice_name(part.by, part.value)
            measured.append((name, where, part.n, part.differences[0], part.metrics))
    end = report.data.current.end
    evaluated = _WITH_TRUTH, f"ts=le:{end}" if end else "", as_part(line)
    rows = []
    for name, where, n, metric, others in measured:
        line_of_row = _answers(report.model.name, report.model.version, *evaluated, where)
        to_images = link("/console/inferences", q=line_of_row) if where or not name else ""
        first = others[0].value if others else None
        rows.append(DifferenceRow(name=name, link=to_images, n=n, first=first, metric=metric))
    return ComparedQuality(
        report_id=report_id,
        report=report,
        comparison=comparison,
        rows=rows,
    )
