"""Cookies of log-ins: how they are set and read, and where a browser keeps them."""

from typing import Any, Literal
from urllib.parse import urlsplit

from litestar import Request
from litestar.datastructures import Cookie

from quadriga.engine.access.key_ring import is_loopback


def session_cookie(
    name: str, value: str, seconds: int, same_site: Literal["lax", "strict"]
) -> Cookie:
    """Return a cookie of the whole server that no script reads, and that only secure connections send."""
    return Cookie(
        key=name,
        value=value,
        path="/",
        max_age=seconds,
        secure=True,
        httponly=True,
        samesite=same_site,
    )


def cookies_of(request: Request[Any, Any, Any]) -> bytes | None:
    """Return the header `Cookie` of a request; None without one."""
    return request.headers.get("cookie", "").encode("latin-1") or None


def server_url(request: Request[Any, Any, Any], public_url: str) -> str:
    """Return the URL at which a person reaches the server, without a slash at its end."""
    host = request.headers.get("host", "")
    return public_url.rstrip("/") or f"{request.scope['scheme']}://{host}"


def keeps_cookies(url: str) -> bool:
    """Check whether browsers keep cookies that only secure connections may send: also of this machine without TLS."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    return parts.scheme == "https" or name.endswith(".localhost") or is_loopback(name)
