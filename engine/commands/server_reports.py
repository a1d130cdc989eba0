"""Has a running server make a report, as a job, and fetches it."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine.commands.report_output import Page
from engine.commands.server_client import ServerClient, ServerError
from monitor.report import Report

_POLL_S = 0.2


class JobFailed(ServerError):
    """A job ended without a result."""


def done(server: ServerClient, job: Any, show: Callable[[int, int | None], None]) -> str:
    """Wait for a job, and return its id.

    Args:
        server: Where it is.
        job: As it was answered.
        show: Is told how far it is, and of how much.

    Raises:
        ServerError: The server does not answer; a `JobFailed` where the job ends without a result.
    """
    while job["state"] in {"queued", "running"}:
        show(job["progress"]["done"], job["progress"]["total"])
        time.sleep(_POLL_S)
        job = server.call("GET", f"/api/jobs/{job['id']}")
    if job["state"] != "succeeded":
        raise JobFailed(str(job["error"] or f"the job was {job['state']}"))
    return str(job["id"])


def fetched(server: ServerClient, report_id: str) -> tuple[Report, Page]:
    """Return a report, and what answers its page.

    Raises:
        ServerError: The server does not answer.
    """
    path = f"/api/reports/{report_id}"
    report = msgspec.json.decode(server.read("GET", path), type=Report)
    page = server.read("GET", f"{path}/page").decode()
    return report, lambda _: page
