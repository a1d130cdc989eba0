"""Page of the audit log, for administrators."""

import time

from litestar import Response

from quadriga.engine.api.access import check_sees_everything
from quadriga.engine.console.frame import PageRequest
from quadriga.engine.console.services import Services
from quadriga.store.audit.reading import parse_since, read_page

LINES = 100
"""Lines of the audit log on a page."""


def audit_page(services: Services) -> None:
    """Register the handler of the audit log."""
    frame = services.frame

    @services.page("/console/audit", "admin")
    def show_audit(request: PageRequest) -> Response[bytes]:
        """Show the audit log, the newest first, page by page."""
        check_sees_everything("the audit log is")
        sent = {name: request.query_params.get(name, "") for name in ("since", "key", "cursor")}
        since = parse_since(sent["since"], time.time()) if sent["since"] else ""
        page = read_page(
            services.settings.audit_directory,
            since=since,
            key=sent["key"],
            limit=LINES,
            cursor=sent["cursor"],
        )
        return frame.page(
            "audit",
            page="audit",
            title="Audit log",
            lines=page.entries,
            is_of_several=len({entry.host for entry in page.entries}) > 1,
            cursor=page.cursor,
            sent=sent,
        )
