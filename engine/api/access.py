"""What the caller of a route may do and see: the guards of the routes, and the one place where a key becomes a scope.

Each route declares what it needs, as `need="read"`, and `audited=True` if it takes data away.
"""

from collections.abc import Callable, Iterable
from typing import Any, get_args

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from quadriga.monitor.watch.webhooks import WebhookHosts, check_host, check_url
from quadriga.proto.access import Need, admit
from quadriga.proto.errors import Forbidden
from quadriga.proto.request import Audit, current_caller, is_audited
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.records.scope import Scope


def caller_scope() -> Scope:
    """Return what the caller of the request that this task or thread answers may see of the store."""
    caller = current_caller()
    return Scope(caller.team, caller.models)


def check_sees_everything(what: str) -> None:
    """Return if the caller sees what the whole server has.

    Raises:
        Forbidden: Its key is for a team or for some models.
    """
    if not caller_scope().is_everything:
        raise Forbidden(f"expected a key without team and models, as {what} of the whole server")


def check_end_webhook(url: EndWebhook, hosts: WebhookHosts) -> None:
    """Check the webhook of a job's end as those of schedules are checked.

    Raises:
        Forbidden: The caller may not monitor.
        QueryError: It is no URL, or of a host that alerts may not be sent to.
    """
    if url is not msgspec.UNSET:
        admit(current_caller(), "monitor")
        check_url(url, "webhook")
        check_host(url, "webhook", hosts)


def guard_route(_: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse a request whose caller has not what the route needs, before its body is read; raises as `admit`.

    A route that declares nothing, which `check_needs` lets not be added, would need the rights of an administrator.
    """
    admit(current_caller(), handler.opt.get("need", "admin"))


Guard = Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], None]


def guard_with(audit: Audit) -> Guard:
    """Return the guard that refuses what would have to be in the audit log while that cannot be written."""

    def guard_audited(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        need, marked = handler.opt.get("need", "admin"), "audited" in handler.opt
        if is_audited(need, connection.scope["method"], is_marked=marked):  # type: ignore[typeddict-item]  # no websockets
            audit.check()

    return guard_audited


def check_needs(handlers: Iterable[HTTPRouteHandler]) -> None:
    """Check that each route declares what it needs.

    Raises:
        ValueError: One does not.
    """
    for handler in handlers:
        need = handler.opt.get("need")
        if need not in get_args(Need):
            paths = ", ".join(sorted(handler.paths))
            raise ValueError(f"expected {paths} to declare a need among {Need}, got {need!r}")
