"""HTTP routes of evaluations, which are jobs, and of the reports that they make; errors as in `store.routes`."""

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIType, Reference, Schema
from litestar.params import FromPath, RawBody

from monitor.evaluation.parameters import (
    MOST_BY,
    MOST_COMPARED,
    MOST_RESAMPLES,
    EvaluationParameters,
    decode_parameters,
)
from monitor.report import Report
from monitor.reports import ReportList, Reports
from store.jobs import Job, Jobs
from store.routes import Error, with_body

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
"""What a page shows was written by clients: nothing in it runs, and nothing is fetched."""

_UNREADABLE = ResponseSpec(Error, False, "The body or one of its filters cannot be understood")
_UNKNOWN = ResponseSpec(Error, False, "No such report, or it is not written yet")
_TOO_LARGE = ResponseSpec(Error, False, "The body is larger than the server takes")
_UNKEPT = ResponseSpec(Error, False, "That could not be kept, as on a full disk")
_TEXT = Schema(type=OpenAPIType.STRING)
_TEXT_OR_NULL = Schema(type=[OpenAPIType.STRING, OpenAPIType.NULL])
_FILTER = Schema(description="A filter, as JSON or in the compact form")
_OTHER = Schema(
    type=OpenAPIType.OBJECT,
    required=["model"],
    properties={"model": _TEXT, "version": _TEXT_OR_NULL, "where": _FILTER},
    additional_properties=False,
)
_PROPERTIES: dict[str, Reference | Schema] = {
    "model": _TEXT,
    "version": _TEXT_OR_NULL,
    "where": _FILTER,
    "by": Schema(
        type=OpenAPIType.ARRAY,
        items=_TEXT,
        max_items=MOST_BY,
        description="What to slice by: meta.<path>, hour, day, month",
    ),
    "slices": Schema(
        type=OpenAPIType.OBJECT,
        additional_properties=_FILTER,
        max_properties=MOST_BY,
        description="Filters to slice by, by name",
    ),
    "compare": Schema(
        type=OpenAPIType.ARRAY,
        items=_OTHER,
        max_items=MOST_COMPARED,
        description="Models, or versions, on the same images",
    ),
    "resamples": Schema(type=OpenAPIType.INTEGER, minimum=0, maximum=MOST_RESAMPLES, default=200),
    "seed": Schema(type=OpenAPIType.INTEGER, minimum=0, maximum=(1 << 32) - 1, default=0),
}
assert _PROPERTIES.keys() == set(EvaluationParameters.__struct_fields__)


def monitor_routes(jobs: Jobs) -> list[HTTPRouteHandler]:
    """Return the handlers that submit evaluations and answer reports."""
    reports = Reports(jobs)
    looked_up: dict[str, Any] = {"sync_to_thread": True, "responses": {404: _UNKNOWN}}

    @post(
        "/api/evaluations",
        status_code=202,
        sync_to_thread=True,
        operation_class=with_body("model", **_PROPERTIES),
        responses={400: _UNREADABLE, 413: _TOO_LARGE, 503: _UNKEPT},
    )
    def submit_evaluation(body: RawBody) -> Job:
        """Evaluate what is stored, as a job; the body is JSON whatever its content type."""
        return jobs.submit("evaluation", msgspec.to_builtins(decode_parameters(body)))

    @get("/api/reports", sync_to_thread=True)
    def list_reports() -> ReportList:
        """Answer all reports, the newest first."""
        return ReportList(reports.all())

    @get("/api/reports/{report_id:str}", **looked_up)
    def get_report(report_id: FromPath[str]) -> Response[Report]:
        """Answer a report; its id is that of the job that made it."""
        written: Any = reports.read(report_id)
        return Response(written, media_type="application/json")

    @get("/api/reports/{report_id:str}/page", media_type="text/html", **looked_up)
    def get_report_page(report_id: FromPath[str]) -> Response[bytes]:
        """Answer a report as an HTML page that needs nothing else."""
        return Response(reports.page(report_id), media_type="text/html", headers=PAGE_HEADERS)

    return [submit_evaluation, list_reports, get_report, get_report_page]
