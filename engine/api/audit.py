"""HTTP route of the audit log."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from quadriga.engine.api.access import check_sees_everything
from quadriga.engine.api.openapi import error_response
from quadriga.engine.api.routes import get
from quadriga.store.audit.reading import MAX_LIMIT, AuditPage, parse_since, read_page

_UNREADABLE = error_response("A parameter cannot be understood")


def audit_route(folder: Path) -> HTTPRouteHandler:
    """Return the handler that reads the audit log in a folder."""

    @get("/api/audit", need="admin", errors={400: _UNREADABLE})
    def read_audit_log(
        since: Annotated[
            str, QueryParameter(description="24h, 7d, or a time such as 2027-03-01T12:00:00Z")
        ] = "",
        key: Annotated[str, QueryParameter(description="Id or name of a key")] = "",
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT)] = 100,
        cursor: Annotated[
            str, QueryParameter(description="The cursor that came with the previous page")
        ] = "",
    ) -> AuditPage:
        """Return the audit log of this server's data folder, newest first, page by page."""
        check_sees_everything("the audit log is")
        read = partial(read_page, folder, key=key, limit=limit, cursor=cursor)
        return read(since=parse_since(since, time.time()) if since else "")

    return read_audit_log
