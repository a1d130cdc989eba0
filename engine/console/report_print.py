"""The whole report of a job, to print and pass on, as the console shows it: with links to its inferences and a way back.

The file of the report has neither, as it is kept and sent where no server is.
"""

import re
from functools import partial
from html import escape
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.api.access import caller_scope
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.texts import TEXTS
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.records.scope import Scoped

PRINT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-same-origin allow-popups allow-popups-to-escape-sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of the page: parts of it come from clients, so a browser may not run or fetch anything. Its links are those of this
origin, as else they would come without the cookie of the session."""

_INFERENCE = re.compile(rb'<a data-inference="([0-9]{1,20})">')
_REPORT = re.compile(rb'<a data-report="([0-9]{1,20}-[0-9a-f]{1,16})">')
_BODY, _FOOTER = b"<body>\n", b"<footer>\n"


def report_print_page(
    frame: Frame, reports: Scoped[ReportStore], path: str, options: dict[str, Any]
) -> HTTPRouteHandler:
    """Return the handler; `path` is that of the console's page of a report."""

    @get(path + "/page", sync_to_thread=True, need="read", **options)
    def show_whole_report(report_id: FromPath[str]) -> Response[bytes]:
        """Show the whole report with links to the console."""
        stored = reports.within(caller_scope()).page(report_id)
        page = with_links(stored, report_id, frame.public_url)
        return Response(page, media_type="text/html", headers=dict(PRINT_HEADERS))

    return show_whole_report


def with_links(page: bytes, report_id: str, url: str) -> bytes:
    """Return the page of a report with links to its inferences and earlier reports, and one back to the console at either end.

    Pages that an earlier version wrote have the link back alone.

    Args:
        page: The page as its job wrote it.
        report_id: Id of the report.
        url: URL at which people reach the server, without a slash at its end, so that links of a copy that somebody keeps
            lead there, too. If it is empty, links have no host: the server cannot know that of a proxy before it, nor
            whether that takes https.
    """
    console = escape(f"{url}/console").encode()
    for pattern, path in ((_INFERENCE, b"inferences"), (_REPORT, b"reports")):
        page = pattern.sub(partial(_link, console + b"/" + path), page)
    back = b'<p class="back"><a href="%s/reports/%s">%s</a></p>\n' % (
        console,
        escape(report_id).encode(),
        escape(TEXTS["back_to_console"]).encode(),
    )
    page = page.replace(_BODY, _BODY + back, 1)
    before, footer, after = page.rpartition(_FOOTER)
    return before + footer + back + after if footer else page


def _link(console_path: bytes, match: re.Match[bytes]) -> bytes:
    return b'<a href="%s/%s">' % (console_path, match[1])
