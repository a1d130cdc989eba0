"""HTTP routes of log-in, log-out and account. Imported only where people log in.

The cookie of a session is `SameSite=Strict`, so the browser does not send it on the way back from the provider, nor on a
link of another site. There the answer is a page of this server that goes on by itself, which makes the next request one of
this server; the cookie of the way to the provider and back is `Lax`.
"""

import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler

from quadriga.extras.sign_on.console_page import PAGE_HEADERS, render
from quadriga.engine.api.session_cookies import (
    cookies_of,
    keeps_cookies,
    server_url,
    session_cookie,
)
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.extras.sign_on.log_in import LOG_IN_S, LogInError, NoLogIn, ProviderAway
from quadriga.engine.access.paths import FIRST_PATH, own_path
from quadriga.extras.sign_on.sessions import (
    SESSION_COOKIE,
    STATE_COOKIE,
    PersonSession,
    cookie_value,
)
from quadriga.extras.sign_on.sign_on import NoRole, SignOn
from quadriga.proto.access import STRANGER, Caller, current_caller
from quadriga.proto.audit import Audit, Notes, Visit, client_address
from quadriga.proto.http.asgi import error_request_id

_THREADS, _WAITING, _WAIT_S = 4, 32, 10.0
"""Log-ins of a worker that ask the provider at once, that wait for that, and how long."""

_MAX_REASON = 200
"""Maximum characters of the reason of a failed log-in in the audit log."""

_log = logging.getLogger("quadriga.http")

PageRequest = Request[Any, Any, Any]


class Account(msgspec.Struct, frozen=True):
    """Who sends a request."""

    name: str
    rights: list[str]
    team: str = ""
    """Team whose records the caller sees; empty for all."""
    expires: str | None = None
    """Time in UTC at which the session ends; null with a key."""


def console_routes(console: "LogInPages") -> list[HTTPRouteHandler]:
    """Return the handlers of log-in, log-out and account."""
    options: dict[str, Any] = {"need": "nothing", "include_in_schema": False}

    @get("/console/you", **options)
    async def show_console(request: PageRequest) -> Response[bytes]:
        """Show who has logged in, or where to log in."""
        return console.first_page(request)

    @get("/console/account", need="key")
    async def read_account(request: PageRequest) -> Account:
        """Return who sends the request: the name, what they may do, and until when."""
        return console.account(request)

    @get("/console/login", **options)
    async def begin_log_in(request: PageRequest) -> Response[bytes]:
        """Take the browser to the identity provider."""
        return console.begin_log_in(request)

    @get("/console/callback", **options)
    async def end_log_in(request: PageRequest) -> Response[bytes]:
        """Begin the session of the person whom the identity provider has sent back."""
        return await console.end_log_in(request)

    @post("/console/logout", status_code=303, **options)
    async def log_out(request: PageRequest) -> Response[bytes]:
        """End the session, here and in every server that shares the database."""
        return await console.log_out(request)

    return [show_console, read_account, begin_log_in, end_log_in, log_out]


class LogInPages:
    """What the routes of log-in, log-out and account answer.

    Args:
        sign_on: Single sign-on of the server.
        audit: The audit log, in which log-ins, failed log-ins and log-outs stand.
        public_url: URL at which people reach the server; empty for that of the request.
    """

    def __init__(self, sign_on: SignOn, audit: Audit, public_url: str) -> None:
        self._sign_on = sign_on
        self._audit = audit
        self._public_url = public_url.rstrip("/")
        self._base = urlsplit(self._public_url).path
        self._threads = BoundedThreads("log-ins", _THREADS, _WAITING, _WAIT_S)

    def first_page(self, request: PageRequest) -> Response[bytes]:
        """Return the page of who has logged in, or where to log in."""
        caller = current_caller()
        if caller.rights:
            return _page(200, title="Account", base=self._base, account=self.account(request))
        return self.visitor_page(request, FIRST_PATH, status=200)

    def visitor_page(
        self, request: PageRequest, next_path: str, *, status: int = 401
    ) -> Response[bytes]:
        """Return the page for who has not logged in, or comes from another site; the way goes on to `next_path`."""
        next_path = own_path(next_path)
        if request.headers.get("sec-fetch-site") == "cross-site":
            return _page(200, title="Quadriga", base=self._base, go_to=self._base + next_path)
        was_here = bool(cookie_value(cookies_of(request), SESSION_COOKIE))
        note = "Your session has ended." if was_here else ""
        return self._log_in_page(note=note, status=status, next_path=next_path)

    def account(self, request: PageRequest) -> Account:
        """Return who sends the request."""
        caller, session = current_caller(), self._session(request)
        expires = None
        if session is not None and session.key_id == caller.key_id:
            expires = datetime.fromtimestamp(session.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Account(caller.name, sorted(caller.rights), caller.team, expires)

    def begin_log_in(self, request: PageRequest) -> Response[bytes]:
        """Return what takes the browser to the identity provider."""
        origin = server_url(request, self._public_url)
        if not keeps_cookies(origin):
            problem = "Log in over https: browsers keep no session of a server without it."
            return _page(400, title="Log in", base=self._base, problem=problem)
        next_path = own_path(request.query_params.get("next", ""))
        try:
            url, value = self._sign_on.log_in.begin(next_path, f"{origin}/console/callback")
        except ProviderAway as error:
            _log.warning("a log-in could not begin: %s", error.detail)
            return self._log_in_page(str(error), status=503, next_path=next_path)
        cookie = session_cookie(STATE_COOKIE, value, LOG_IN_S, "lax")
        return _redirect(302, url, cookie)

    async def end_log_in(self, request: PageRequest) -> Response[bytes]:
        """Begin the session of the person whom the provider has sent back."""
        cookie, sent = cookie_value(cookies_of(request), STATE_COOKIE), request.query_params
        try:
            begun = self._sign_on.log_in.opened(cookie, sent.get("state", ""))
        except NoLogIn as error:  # anybody can send that: it is no line of the audit log
            return self._log_in_page(str(error), status=400)
        request_id = error_request_id(request.headers.get("x-request-id"))
        visit = partial(_visit, request, "log-in", request_id)
        forget = session_cookie(STATE_COOKIE, "", 0, "lax")
        try:
            self._audit.check()
            session, value = await self._threads.run(
                self._sign_on.begin_session, begun, sent.get("code"), sent.get("error")
            )
        except LogInError as error:
            caller = error.caller if isinstance(error, NoRole) else STRANGER
            self._audit.refuse(visit(caller, error.detail[:_MAX_REASON]), 400)
            _log.warning("request %s: a log-in failed: %s", request_id, error.detail)
            status = 503 if isinstance(error, ProviderAway) else 400
            answer = self._log_in_page(str(error), status=status, next_path=begun.next_path)
            answer.cookies.append(forget)
            return answer
        self._audit.write(visit(session.caller), 200)
        seconds = max(1, session.expires_s - int(time.time()))
        answer = _page(200, title="Logged in", base=self._base, go_to=self._base + begun.next_path)
        answer.cookies += [session_cookie(SESSION_COOKIE, value, seconds, "strict"), forget]
        return answer

    async def log_out(self, request: PageRequest) -> Response[bytes]:
        """End the session."""
        session, home = self._session(request), self._base + FIRST_PATH
        # Without a session that counts, as for a page of another site, nothing is ended.
        if session is None or current_caller().key_id != session.key_id:
            return _redirect(303, home)
        await self._threads.run(self._sign_on.end_session, session)
        request_id = error_request_id(request.headers.get("x-request-id"))
        self._audit.write(_visit(request, "log-out", request_id, session.caller), 303)
        return _redirect(303, home, session_cookie(SESSION_COOKIE, "", 0, "strict"))

    def _log_in_page(
        self, problem: str = "", *, note: str = "", status: int = 200, next_path: str = FIRST_PATH
    ) -> Response[bytes]:
        return _page(
            status,
            title="Log in",
            base=self._base,
            problem=problem,
            note=note,
            log_in=f"{self._base}/console/login?next={quote(next_path, safe='')}",
            provider=urlsplit(self._sign_on.issuer).netloc,
        )

    def _session(self, request: PageRequest) -> PersonSession | None:
        return self._sign_on.sessions.find(cookies_of(request))


def _page(status: int, **content: Any) -> Response[bytes]:
    return Response(
        render(**content),
        status_code=status,
        media_type="text/html",
        headers=PAGE_HEADERS,
    )


def _redirect(status: int, url: str, *cookies: Cookie) -> Response[bytes]:
    headers = {**PAGE_HEADERS, "Location": url}
    return Response(b"", status_code=status, headers=headers, cookies=list(cookies))


def _visit(
    request: PageRequest, action: str, request_id: str, caller: Caller, reason: str = ""
) -> Visit:
    return Visit(
        caller=caller,
        action=action,
        address=client_address(request.scope),
        request_id=request_id,
        notes=Notes(target=reason),
    )
