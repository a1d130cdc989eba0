"""HTTP routes of log-in by an identity provider; log-out and account are those of the console.

The cookie of a session is `SameSite=Strict`, so the browser does not send it on the way back from the provider, nor on a
link of another site. There the answer is a page of this server that goes on by itself, which makes the next request one of
this server; the cookie of the way to the provider and back is `Lax`.
"""

import logging
import time
from typing import Any

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.access.sessions import SESSION_COOKIE, cookie_value, own_path
from quadriga.engine.api.session_cookies import (
    cookies_of,
    keeps_cookies,
    server_url,
    session_cookie,
)
from quadriga.engine.console.frame import PageRequest, redirect
from quadriga.engine.console.visitors import LOG_IN_PATH, Visitors, session_end, visit
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.extras.sign_on.log_in import LOG_IN_S, LogInError, NoLogIn, ProviderAway
from quadriga.extras.sign_on.sign_on import NoRole, SignOn
from quadriga.proto.access import STRANGER, current_caller
from quadriga.proto.audit import Audit

STATE_COOKIE = "__Host-quadriga-login"
_THREADS, _WAITING, _WAIT_S = 4, 32, 10.0
"""Log-ins of a worker that ask the provider at once, that wait for that, and how long."""

_MAX_REASON = 200
"""Maximum characters of the reason of a failed log-in in the audit log."""

_log = logging.getLogger("quadriga.http")


class Account(msgspec.Struct, frozen=True):
    """The sender of a request."""

    name: str
    rights: list[str]
    team: str = ""
    """Team whose records the caller sees; empty for all."""
    expires: str | None = None
    """Time in UTC at which the session ends; null with a key."""


def log_in_routes(visitors: Visitors, sign_on: SignOn, audit: Audit) -> list[HTTPRouteHandler]:
    """Return the handlers of log-in and of the account as JSON.

    Args:
        visitors: Has the page where to log in.
        sign_on: Single sign-on of the server.
        audit: The audit log, in which log-ins and failed log-ins stand.
    """
    base, public_url = visitors.frame.base, visitors.frame.public_url
    threads = BoundedThreads("log-ins", _THREADS, _WAITING, _WAIT_S)
    options: dict[str, Any] = {"need": "nothing", "include_in_schema": False}

    @get("/console/account", need="key")
    async def read_account(request: PageRequest) -> Account:
        """Return who sends the request: the name, what they may do, and until when."""
        caller = current_caller()
        expires = session_end(request, sign_on)
        return Account(caller.name, sorted(caller.rights), caller.team, expires)

    @get(LOG_IN_PATH, **options)
    async def begin_log_in(request: PageRequest) -> Response[bytes]:
        """Take the browser to the identity provider."""
        origin = server_url(request, public_url)
        next_path = own_path(request.query_params.get("next", ""))
        if not keeps_cookies(origin):  # the page says why
            return visitors.form(request, next_path, status=400)
        try:
            url, value = sign_on.log_in.begin(next_path, f"{origin}/console/callback")
        except ProviderAway as error:
            _log.warning("a log-in could not begin: %s", error.detail)
            return visitors.form(request, next_path, status=503, problem=str(error))
        answer = redirect(url)
        answer.status_code = 302
        answer.cookies.append(session_cookie(STATE_COOKIE, value, LOG_IN_S, "lax"))
        return answer

    @get("/console/callback", **options)
    async def end_log_in(request: PageRequest) -> Response[bytes]:
        """Begin the session of the person whom the identity provider has sent back."""
        cookie, sent = cookie_value(cookies_of(request), STATE_COOKIE), request.query_params
        try:
            begun = sign_on.log_in.opened(cookie, sent.get("state", ""))
        except NoLogIn as error:  # anybody can send that: it is no line of the audit log
            return visitors.form(request, own_path(""), status=400, problem=str(error))
        forget = session_cookie(STATE_COOKIE, "", 0, "lax")
        try:
            audit.check()
            session, value = await threads.run(
                sign_on.begin, begun, sent.get("code"), sent.get("error")
            )
        except LogInError as error:
            caller = error.caller if isinstance(error, NoRole) else STRANGER
            refused = visit(request, "log-in", caller, error.detail[:_MAX_REASON])
            audit.refuse(refused, 400)
            _log.warning("request %s: a log-in failed: %s", refused.request_id, error.detail)
            status = 503 if isinstance(error, ProviderAway) else 400
            answer = visitors.form(request, begun.next_path, status=status, problem=str(error))
            answer.cookies.append(forget)
            return answer
        audit.write(visit(request, "log-in", session.caller), 200)
        seconds = max(1, session.expires_s - int(time.time()))
        answer = visitors.form(request, begun.next_path, status=200, go_to=base + begun.next_path)
        answer.cookies += [session_cookie(SESSION_COOKIE, value, seconds, "strict"), forget]
        return answer

    return [read_account, begin_log_in, end_log_in]
