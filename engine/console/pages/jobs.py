"""Pages of jobs: all of them, and one with its log, which can be cancelled."""

import msgspec
from litestar import Response
from litestar.params import FromPath

from quadriga.engine.api.access import caller_scope
from quadriga.engine.console.frame import PageRequest, redirect
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.monitor.report.saved import REPORT_FILE
from quadriga.store.jobs.jobs import ENDED

SHOWN = 200
"""Jobs of the list."""


def job_pages(services: Services, store: ConsoleStore) -> None:
    """Register the handlers."""
    frame, jobs = services.frame, store.jobs

    @services.page("/console/jobs")
    def show_jobs() -> Response[bytes]:
        """Show the jobs, the newest first."""
        listed = jobs.within(caller_scope()).all()
        return frame.page(
            "jobs",
            page="jobs",
            title="Jobs",
            jobs=listed[:SHOWN],
            more=max(len(listed) - SHOWN, 0),
            report_file=REPORT_FILE,
            ended=ENDED,
        )

    @services.page("/console/jobs/{job_id:str}")
    def show_job(job_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show one job with its log; whoever started it from a form for its report goes on to that."""
        job = jobs.within(caller_scope()).read(job_id, with_log=True)
        is_report = job.result is not None and job.result.file == REPORT_FILE
        if is_report and request.query_params.get("then") == "report":
            return redirect(frame.link(f"/console/reports/{job.id}"))
        parameters = msgspec.json.format(msgspec.json.encode(job.parameters), indent=2)
        return frame.page(
            "job",
            page="jobs",
            title=f"{job.kind} {job.id}",
            job=job,
            parameters=parameters.decode(),
            report_file=REPORT_FILE,
            is_running=job.state not in ENDED,
        )

    @services.form("/console/jobs/{job_id:str}/cancel", "monitor")
    def cancel_job(job_id: FromPath[str]) -> Response[bytes]:
        """Cancel a job at its next step, and go back to its page."""
        job = jobs.within(caller_scope()).cancel(job_id)
        return redirect(frame.link(f"/console/jobs/{job.id}"))
