"""Jobs and their reports."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InputError, JobFailed
from ..progress import ProgressLine
from ..reports import Report
from ..transport.calls import read_bytes, read_call, read_text
from .resource import Resource, Rows

FIRST_LOOK_S, MAX_LOOK_S = 0.1, 2.0
"""Pause before the second look at a job, which grows up to the longest."""

_GOES_ON = {"queued", "running"}


class Job(dict[str, Any]):
    """A job as the server's JSON, as a dict."""

    def __repr__(self) -> str:
        return f"<Job {self.get('id', '?')}: {_progress(self)}>"


class Jobs(Resource):
    """`client.jobs`: evaluations, comparisons, exports and bulk inferences under way."""

    def list(self) -> Rows:
        """Return all jobs, newest first."""
        return [Job(job) for job in self._get("/api/jobs")["jobs"]]

    def get(self, job_id: str) -> Job:
        """Return one job, with the end of its log."""
        return Job(self._get("/api/jobs/{}", job_id))

    def cancel(self, job_id: str) -> Job:
        """Cancel a job at its next step."""
        return Job(self._request("POST", "/api/jobs/{}/cancel", job_id, is_repeatable=True))

    def result(
        self,
        job_id: str,
        path: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
    ) -> bytes | Path:
        """Return the result file of a job, or write it to a path and return that; then it may be of any size.

        A file that cannot be fetched to its end leaves nothing at the path.

        Args:
            job_id: Id of the job.
            path: File to write.
            progress: Whether stderr shows how much of the file is there; None for yes on a terminal.
        """
        call = read_call("/api/jobs/{}/result", job_id)
        if path is None:
            return self._sender.send(call, read_bytes)
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        line = ProgressLine(progress)
        try:
            with part.open("wb") as file:

                def progress_text() -> str:
                    return f"{target.name}: {file.tell() >> 20} MiB"

                for data in self._sender.open_stream(call, by_line=False):
                    file.write(data)
                    line.show(progress_text)
                line.end(progress_text)
            part.replace(target)
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise InputError(f"cannot write {os.fspath(path)}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)
        return target

    def wait(
        self,
        job_id: str | dict[str, Any],
        *,
        timeout: float | None = None,
        progress: bool | None = None,
    ) -> Job:
        """Wait for the end of a job, and return it.

        Args:
            job_id: Id of the job, or the job.
            timeout: Seconds; None for no limit. The job goes on after it.
            progress: Whether stderr shows how far it is; None for yes on a terminal.

        Raises:
            JobFailed: It failed or was cancelled.
            TimeoutError: The time is over.
        """
        id_ = job_id["id"] if isinstance(job_id, dict) else job_id
        until_s = None if timeout is None else time.monotonic() + timeout
        pause_s, line, job = FIRST_LOOK_S, ProgressLine(progress), Job(id=id_)
        try:
            while True:
                job = self.get(id_)
                line.show(partial(_progress, job))
                if job["state"] not in _GOES_ON:
                    break
                if until_s is not None and time.monotonic() + pause_s > until_s:
                    raise TimeoutError(f"job {id_} is {job['state']} after {timeout} s")
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, MAX_LOOK_S)
        finally:
            line.end(partial(_progress, job))
        if job["state"] != "succeeded":
            raise JobFailed(f"job {id_}: {job.get('error') or job['state']}", job)
        return job


class Reports(Resource):
    """`client.reports`: what evaluations and comparisons found."""

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Any:
        """Return the reports, the newest first; with a limit a page of them, and `cursor` for the next, None on the last one."""
        return self._get("/api/reports", limit=limit, cursor=cursor)

    def get(self, report_id: str) -> Report:
        """Return a report, by the id of its job."""
        return Report(self._get("/api/reports/{}", report_id))

    def page(self, report_id: str) -> str:
        """Return a report as a page of HTML."""
        return self._sender.send(read_call("/api/reports/{}/page", report_id), read_text)

    def inferences(
        self,
        report_id: str,
        *,
        truth: str | None = None,
        predicted: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        q: str | None = None,
    ) -> Any:
        """Return a page of the inferences in a cell of the report's confusion matrix."""
        cell = {"truth": truth, "predicted": predicted, "order": order}
        path = "/api/reports/{}/inferences"
        return self._get(path, report_id, **cell, limit=limit, cursor=cursor, q=q)

    def acknowledgement(self, report_id: str) -> Any:
        """Return who acknowledged a report."""
        return self._get("/api/reports/{}/acknowledge", report_id)

    def acknowledge(self, report_id: str, note: str = "") -> Any:
        """Say that a report was seen, and what is known or done."""
        body = {"note": note}
        return self._request("POST", "/api/reports/{}/acknowledge", report_id, body=body)


def _progress(job: dict[str, Any]) -> str:
    """Return what a job is and how far, such as `export running: 3/20`."""
    progress = job.get("progress") or {}
    total = progress.get("total")
    of = "" if total is None else f"/{total}"
    step = f", {progress['step']}" if progress.get("step") else ""
    return f"{job.get('kind', 'job')} {job.get('state', '?')}: {progress.get('done', 0)}{of}{step}"
