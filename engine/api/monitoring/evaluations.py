"""HTTP routes for evaluations, which are jobs, and for the reports of evaluations and drift."""

from functools import partial
from typing import Annotated, Any

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter, RawBody

from quadriga.engine.api.access import caller_scope, check_end_webhook
from quadriga.engine.api.openapi import (
    NOT_READY,
    UNREADABLE_QUERY,
    body_errors,
    error_response,
    json_body,
    url_query,
)
from quadriga.engine.api.routes import get, post
from quadriga.engine.api.store_queries import StoreQueries, query_string
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.monitor.evaluation.parameters import (
    EvaluationParameters,
    decode_parameters,
    with_model_names,
)
from quadriga.monitor.report.cells import (
    URL_OPTIONS,
    CellRequest,
    cell_page,
    cell_request_from_url,
)
from quadriga.monitor.report.saved import ReportList, ReportStore
from quadriga.monitor.report.schema import Report
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts
from quadriga.proto.request import note_target
from quadriga.store.jobs.jobs import Job, Jobs
from quadriga.store.query.inferences import InferenceReader, Page
from quadriga.store.records.scope import Scoped

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of a report's page: parts of it come from clients, so a browser may not run or fetch anything."""

MAX_LISTED = 1000
"""Maximum reports of a page."""

PAGE_THREADS, WAITING_PAGES, PAGE_WAIT_S = 1, 64, 30.0
"""Pages that a worker draws at once, as each decodes dozens of images, that wait for that, and how long each waits at most."""

_UNREADABLE_PAGE = error_response("A parameter cannot be understood")
_UNREADABLE = error_response("The body or one of its filters cannot be understood")
_UNKNOWN = error_response("No such report, or it is not written yet")
_EVALUATION = json_body(
    EvaluationParameters,
    "schedule",
    by="Fields to slice by: meta.<path>, hour, day, month",
    slices="Filters to slice by, by name",
    compare="Models or versions to compare on the same images",
    top_k="k of TopKAccuracy; null for 5, and 3 among all numbers",
    iou="Match thresholds of objects: AP is the mean over them, other metrics are at the first; null for COCO's and DOTA's",
    score="Scores from which predictions count for precision, recall and F1, the first also for the confusion matrix",
    bins="Bins of ECE and MCE; null for 15",
    single_label="true: images with none or several true labels are left out; false: the set is multi-label; null: it is "
    "as soon as one image has none or several",
)
_CELLS = url_query(
    CellRequest,
    URL_OPTIONS,
    path="report_id",
    truth="True label; empty for predictions without an object; any if it is left out",
    predicted="Predicted label; empty for objects without a prediction; any if it is left out",
    order="Newest or oldest first",
    cursor="The cursor that came with the previous page",
)


def begin_evaluation(
    jobs: Scoped[Jobs], inferences: Scoped[InferenceReader], parameters: EvaluationParameters
) -> Job:
    """Submit an evaluation of what the caller may see.

    Raises:
        NotFoundError: A model, or a report of a filter, is not known.
    """
    named = with_model_names(parameters, inferences.within(caller_scope()))
    job = jobs.within(caller_scope()).submit("evaluation", named)
    note_target(job.id)
    return job


def evaluation_routes(
    jobs: Scoped[Jobs],
    inferences: Scoped[InferenceReader],
    reports: Scoped[ReportStore],
    hosts: WebhookHosts = ANY_PUBLIC,
) -> list[HTTPRouteHandler]:
    """Return the handlers that submit evaluations and read reports.

    Args:
        jobs: The jobs.
        inferences: Finds the models of evaluations.
        reports: The reports.
        hosts: The hosts that ends of jobs may be told to.
    """
    errors, unknown = body_errors(_UNREADABLE), {404: _UNKNOWN}
    pages = StoreQueries(
        inferences, BoundedThreads("pages of reports", PAGE_THREADS, WAITING_PAGES, PAGE_WAIT_S)
    )

    @post("/api/evaluations", need="monitor", operation=_EVALUATION, errors=errors, status=202)
    def submit_evaluation(body: RawBody) -> Job:
        """Evaluate stored inferences, as a job; the body is JSON whatever its content type."""
        parameters = decode_parameters(body)
        check_end_webhook(parameters.webhook, hosts)
        return begin_evaluation(jobs, inferences, parameters)

    @get("/api/reports", need="read", errors={400: _UNREADABLE_PAGE})
    def list_reports(
        limit: Annotated[
            int | None,
            QueryParameter(ge=1, le=MAX_LISTED, description="Reports of a page; all without it"),
        ] = None,
        cursor: Annotated[
            str, QueryParameter(description="The cursor that came with the previous page")
        ] = "",
    ) -> ReportList:
        """Return all reports, newest first; page by page with a limit."""
        return reports.within(caller_scope()).read_list(limit, cursor)

    @get("/api/reports/{report_id:str}", need="read", errors=unknown)
    def get_report(report_id: FromPath[str]) -> Response[Report]:
        """Return a report; its id is that of the job that wrote it."""
        encoded: Any = reports.within(caller_scope()).read(report_id)
        return Response(encoded, media_type="application/json")

    cell_errors = {400: UNREADABLE_QUERY, 404: _UNKNOWN, 503: NOT_READY}

    @get(
        "/api/reports/{report_id:str}/inferences", need="read", operation=_CELLS, errors=cell_errors
    )
    def get_cell(report_id: FromPath[str], request: Request[Any, Any, Any]) -> Page:
        """Return the inferences of cells of the confusion matrix, page by page; further fields of the URL filter them."""
        cells = cell_request_from_url(query_string(request))
        directory = reports.within(caller_scope()).directory(report_id)
        return cell_page(inferences.within(caller_scope()), directory, cells)

    @get(
        "/api/reports/{report_id:str}/page",
        need="read",
        errors={404: _UNKNOWN, 503: NOT_READY},
        media_type="text/html",
    )
    async def get_report_page(
        report_id: FromPath[str], request: Request[Any, Any, Any]
    ) -> Response[bytes]:
        """Return a report as a self-contained HTML page."""
        report = partial(reports.within(caller_scope()).page, report_id)
        page = await pages.run(request, lambda store: report(store.image))
        return Response(page, media_type="text/html", headers=PAGE_HEADERS)

    return [submit_evaluation, list_reports, get_report, get_cell, get_report_page]
