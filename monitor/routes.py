"""HTTP routes of evaluations, which are jobs, and of the reports that they make; errors as in `quadriga.store.routes`."""

from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, RawBody

from quadriga.monitor.evaluation.parameters import EvaluationParameters, decode_parameters
from quadriga.monitor.report.saved import ReportList, Reports
from quadriga.monitor.report.schema import Report
from quadriga.store.bodies import body_of
from quadriga.store.jobs import Job, Jobs
from quadriga.store.routes import Error, taking

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
"""What a page shows was written by clients: nothing in it runs, and nothing is fetched."""

_UNREADABLE = ResponseSpec(Error, False, "The body or one of its filters cannot be understood")
_UNKNOWN = ResponseSpec(Error, False, "No such report, or it is not written yet")
_EVALUATION = body_of(
    EvaluationParameters,
    by="What to slice by: meta.<path>, hour, day, month",
    slices="Filters to slice by, by name",
    compare="Models, or versions, on the same images",
)


def monitor_routes(jobs: Jobs) -> list[HTTPRouteHandler]:
    """Return the handlers that submit evaluations and answer reports."""
    reports = Reports(jobs)
    looked_up: dict[str, Any] = {"sync_to_thread": True, "responses": {404: _UNKNOWN}}

    @post("/api/evaluations", sync_to_thread=True, **taking(_EVALUATION, _UNREADABLE, 202))
    def submit_evaluation(body: RawBody) -> Job:
        """Evaluate what is stored, as a job; the body is JSON whatever its content type."""
        return jobs.submit("evaluation", decode_parameters(body))

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
