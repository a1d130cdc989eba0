"""What keeps pages of other people out, who may visit them in a browser that reaches this server.

A browser sends requests of any page to any address, with its user's place in the network. It marks them: by `Origin`
and `Sec-Fetch-Site`, and by the `Host` that the page knows, which an attacker may point at a loopback address
(DNS rebinding). Programs mark nothing, and are not asked for anything.

Source: Fetch, sections 3.1 (Origin) and 3.2 (CORS protocol); Fetch Metadata Request Headers.
"""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import urlsplit

from quadriga.engine.access.key_ring import is_loopback
from quadriga.engine.config.settings import Settings
from quadriga.proto.errors import Forbidden

ANY_HOST_PATHS = frozenset({"/ready", "/v2/health/live", "/v2/health/ready", "/metrics"})
"""Paths that probes and scrapers call by the address of a machine, whatever its name."""

_PREFLIGHT_S = 600
_METHODS = b"GET, HEAD, POST, PUT, DELETE"
_SITES_OF_OURS = (None, b"same-origin", b"none")

Headers = list[tuple[bytes, bytes]]


class BrowserRules:
    """The rules of one server.

    Args:
        settings: Settings of the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._hosts = _split(settings.allowed_hosts)
        self._origins = {
            origin.rstrip("/").lower().encode() for origin in _split(settings.cors_origins)
        }
        public = urlsplit(settings.public_url.lower())
        self._public_https_host = public.netloc.encode() if public.scheme == "https" else b""
        self._public_origin = _origin(public.scheme, public.netloc)
        self._is_local = is_loopback(settings.host)
        self._is_our_host = lru_cache(maxsize=64)(self._names_us)

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes], *, scheme: str) -> None:
        """Check where a request comes from.

        Args:
            method: Verb of the request.
            path: Path of the request.
            headers: Values by name in lower case.
            scheme: `https` or `http`, as a trusted proxy says or else as the request came.

        Raises:
            Forbidden: It names a host that is not ours, or comes from a page of another origin.
        """
        host = headers.get(b"host", b"")
        if path not in ANY_HOST_PATHS and not self._is_our_host(host):
            raise Forbidden(
                f"expected the name of this server in Host, got {host.decode('latin-1')!r:.140} "
                "(setting allowed_hosts)"
            )
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site")
        if origin is None and site in _SITES_OF_OURS:
            return
        if origin is not None:
            if origin.lower() in self._origins or self._is_own(origin, headers, scheme):
                return
            text = origin.decode("latin-1")
            own = self._public_origin or _origin(scheme, host.decode("latin-1"))
            raise Forbidden(
                f"expected a page of this server, {own!r:.140}, or of the setting cors_origins, got one of {text!r:.140}"
            )
        is_visit = (
            method in ("GET", "HEAD")
            and headers.get(b"sec-fetch-mode") == b"navigate"
            and headers.get(b"sec-fetch-dest") == b"document"
        )
        if (
            not is_visit
        ):  # a link on another page may lead here; what it shows, that page cannot read
            raise Forbidden("expected a request of a page of this server, got one of another site")

    def may_use_session(self, method: str, headers: Mapping[bytes, bytes], scheme: str) -> bool:
        """Check whether a browser marks a request, which `check` lets pass, as one of a page of this server or of its user.

        Browsers add the cookie of a session by themselves, so it counts with such a mark only.
        """
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None and not self._is_own(origin, headers, scheme):
            return False  # one of cors_origins
        if site == b"same-origin" or (site is None and origin is not None):
            return True
        return site is not None and method in (
            "GET",
            "HEAD",
        )  # a visit, as other sites may do nothing else

    def shared_with(self, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the headers that let a page of another origin read the response; none for others."""
        origin = headers.get(b"origin")
        if origin is None or origin.lower() not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"origin"),
        ]

    def preflight(self, headers: Mapping[bytes, bytes]) -> Headers | None:
        """Return further headers of the answer to a CORS preflight, of an allowed origin; None for other requests."""
        if b"access-control-request-method" not in headers:
            return None
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"")),
            (b"access-control-max-age", b"%d" % _PREFLIGHT_S),
        ]

    def _is_own(self, origin: bytes, headers: Mapping[bytes, bytes], scheme: str) -> bool:
        """Whether an `Origin` is that of this server's own pages: its host and, as far as that is known, its scheme.

        A page that came without TLS may be anybody's on the way, and is not one of a server with TLS. Behind a proxy that
        ends TLS and is not trusted to say so, and without a `public_url`, the browser knows: it marks such a page's
        requests as cross-site. The other way round, a page of HTTPS is not a stranger to the same host without TLS.
        """
        if headers.get(b"sec-fetch-site") not in _SITES_OF_OURS:
            return False
        page_scheme, _, page_host = origin.lower().partition(b"://")
        is_public = bool(page_host) and origin.lower() == self._public_origin.encode()
        if is_public and (page_scheme, scheme) != (b"http", "https"):
            return True  # a proxy may hand on another Host, as without the port
        host = headers.get(b"host", b"").lower()
        has_tls = scheme == "https" or host == self._public_https_host
        return page_host == host and (
            page_scheme == b"https" or (page_scheme == b"http" and not has_tls)
        )

    def _names_us(self, host: bytes) -> bool:
        """Whether a `Host` names this server.

        Without a list, a server on a loopback address has the names of such addresses, as others may be pointed at it.
        One that others reach has any name: who reaches it needs a key, which browsers do not send by themselves.
        """
        name = host_name(host)
        if not name or _is_address(name):
            return True
        if name == "localhost" or name.endswith(".localhost"):  # browsers ask nobody where that is
            return True
        if self._hosts:
            return any(fnmatchcase(name, pattern) for pattern in self._hosts)
        return not self._is_local


def host_name(host: bytes) -> str:
    """Return the name or address in a `Host`, in lower case, without its port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _origin(scheme: str, host: str) -> str:
    """Return the origin of a server as browsers write it, without the usual port; empty without a host."""
    port = {"https": ":443", "http": ":80"}.get(scheme, "")
    return f"{scheme}://{host.removesuffix(port)}" if host else ""


def _is_address(name: str) -> bool:
    """Whether a name is an address, which nobody can point elsewhere."""
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def _split(setting: str) -> list[str]:
    return [part.strip().lower() for part in setting.split(",") if part.strip()]
