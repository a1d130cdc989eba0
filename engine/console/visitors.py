"""Who has not logged in: the page that asks for a key or leads to an identity provider; and who has logged in."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import RawBody

from quadriga.engine.access.sessions import (
    FIRST_PATH,
    SESSION_COOKIE,
    BrowserSessions,
    KeySessions,
    cookie_value,
    own_path,
)
from quadriga.engine.api.session_cookies import (
    cookies_of,
    keeps_cookies,
    server_url,
    session_cookie,
)
from quadriga.engine.config.settings import SESSION_HOURS
from quadriga.engine.console.frame import Frame, PageRequest, path_of, redirect
from quadriga.proto.access import Caller
from quadriga.proto.request import Audit, RequestContext, current_caller, current_request

LOG_IN_PATH = "/console/login"
_MAX_FORM_BYTES = 4096
_log = logging.getLogger("quadriga.http")


class Visitors:
    """Answers who has not logged in.

    Args:
        frame: The frame of all pages.
        provider: Name of the identity provider that people log in with; empty for log-in with a key.
    """

    def __init__(self, frame: Frame, provider: str = "") -> None:
        self.frame = frame
        self._provider = provider

    def answer(self, request: PageRequest, next_path: str, status: int = 401) -> Response[bytes]:
        """Return the page where to log in; from there the way goes on to a path."""
        next_path = own_path(next_path)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # The browser keeps the cookie of the session back on the way from another site.
            return self.form(request, next_path, status=200, go_to=self.frame.base + next_path)
        was_here = bool(cookie_value(cookies_of(request), SESSION_COOKIE))
        note = "Your session has ended." if was_here else ""
        return self.form(request, next_path, status=status, note=note)

    def form(
        self,
        request: PageRequest,
        next_path: str,
        *,
        status: int = 401,
        problem: str = "",
        note: str = "",
        go_to: str = "",
    ) -> Response[bytes]:
        """Return the page with the form for a key, or the link to the provider."""
        return self.frame.page(
            "log_in",
            status=status,
            page="",
            title="Log in",
            next_path=next_path,
            problem=problem,
            note=note,
            go_to=go_to,
            session_hours=SESSION_HOURS,
            provider=self._provider,
            can_log_in=keeps_cookies(server_url(request, self.frame.public_url)),
        )


def key_log_in_routes(
    visitors: Visitors, sessions: KeySessions, audit: Audit
) -> list[HTTPRouteHandler]:
    """Return the handlers of log-in with a key.

    Args:
        visitors: Has the form.
        sessions: Sessions of keys.
        audit: The audit log, in which log-ins and failed log-ins stand.
    """
    options: dict[str, Any] = {"need": "nothing", "include_in_schema": False}

    @get(LOG_IN_PATH, **options)
    async def show_log_in(request: PageRequest) -> Response[bytes]:
        """Show the form for a key."""
        return visitors.form(request, own_path(request.query_params.get("next", "")), status=200)

    @post(LOG_IN_PATH, status_code=303, request_max_body_size=_MAX_FORM_BYTES, **options)
    async def log_in(request: PageRequest, body: RawBody) -> Response[bytes]:
        """Begin a session of the key that the form has."""
        fields = parse_qs(body.decode("latin-1"), max_num_fields=10)
        next_path = own_path(fields.get("next", [""])[0])
        audit.check()
        try:
            caller, value = await asyncio.to_thread(
                sessions.begin, fields.get("key", [""])[0].strip()
            )
        except OSError as error:
            _log.warning("a session of a key cannot begin: %s", error)
            return visitors.form(
                request,
                next_path,
                status=503,
                problem="The server cannot keep a session now. Its log says why.",
            )
        if not value:
            audit.refuse(visit(caller, "unknown key"), 400, "log-in")
            return visitors.form(
                request, next_path, status=400, problem="Invalid or expired API key."
            )
        audit.write(visit(caller), 303, "log-in")
        answer = redirect(visitors.frame.base + next_path)
        answer.cookies.append(session_cookie(SESSION_COOKIE, value, sessions.seconds, "strict"))
        return answer

    return [show_log_in, log_in]


def session_routes(
    visitors: Visitors, sessions: BrowserSessions, audit: Audit
) -> list[HTTPRouteHandler]:
    """Return the handlers of log-out and account.

    Args:
        visitors: Has the page where to log in.
        sessions: Sessions of keys or of people.
        audit: The audit log, in which log-outs stand.
    """
    frame = visitors.frame
    options: dict[str, Any] = {"need": "nothing", "include_in_schema": False}

    @post("/console/logout", status_code=303, **options)
    async def log_out(request: PageRequest) -> Response[bytes]:
        """End the session, here and in every server that shares the database."""
        session, home = sessions.find(cookies_of(request)), frame.base + FIRST_PATH
        caller = current_caller()
        # Without a session that counts, as for a page of another site, nothing is ended.
        if session is None or caller.key_id != session.key_id:
            return redirect(home)
        await asyncio.to_thread(sessions.end, session, caller.name)
        audit.write(visit(caller), 303, "log-out")
        answer = redirect(home)
        answer.cookies.append(session_cookie(SESSION_COOKIE, "", 0, "strict"))
        return answer

    @get("/console/you", **options)
    async def show_caller(request: PageRequest) -> Response[bytes]:
        """Show who sends the request, and until when."""
        caller = current_caller()
        if not caller.rights:
            return visitors.answer(request, path_of(request), status=200)
        expires = session_end(request, sessions)
        return frame.page("you", page="", title="Account", expires=expires)

    return [log_out, show_caller]


def session_end(request: PageRequest, sessions: BrowserSessions) -> str | None:
    """Return when the session ends by which a request counts, in UTC; None for a request with a key."""
    session = sessions.find(cookies_of(request))
    if session is None or session.key_id != current_caller().key_id:
        return None
    return datetime.fromtimestamp(session.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def visit(caller: Caller, reason: str = "") -> RequestContext:
    """Return the request that this task answers as one of a caller, for a line of the audit log about a log-in or log-out."""
    request = current_request() or RequestContext()
    return msgspec.structs.replace(request, caller=caller, target=reason)
