"""The image of a task of Label Studio: an inference of this store, a signed URL of it, or an image of another server.

A server that fetches what clients name can be made to reach into its own network. So nothing is fetched unless the
setting `extras.label_studio.hosts` allows its host, every redirect is checked anew, and the address that was checked is the one
that is connected to. Size and time are limited.
"""

import http.client
import json
import logging
import re
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, urljoin, urlsplit

import msgspec

from quadriga.extras.label_studio.settings import parse_hosts
from quadriga.monitor.watch.host_connections import (
    DEFAULT_PORTS,
    DeliveryDeadline,
    DeliveryError,
    HostConnections,
)
from quadriga.monitor.watch.webhooks import WebhookHosts
from quadriga.proto.errors import InvalidRequest
from quadriga.quoting import quoted
from quadriga.tasks.image import is_image_file

MAX_URL_CHARACTERS = 4000

_INPUT = re.compile(r"/api/inferences/([0-9]{1,19})/input/?", re.ASCII)
_BLOB = re.compile(r"/api/blobs/([0-9a-f]{64})", re.ASCII)
_ID = re.compile(r"[0-9]{1,19}", re.ASCII)


class StoredImage(msgspec.Struct, frozen=True):
    """The input of a stored inference."""

    inference_id: str


class SignedImage(msgspec.Struct, frozen=True):
    """An input that a signed URL of this server names; the signature shows that its bearer may see it."""

    digest: str
    query: Mapping[str, str]


class RemoteImage(msgspec.Struct, frozen=True):
    """An image at a URL of another server."""

    url: str


TaskImage = StoredImage | SignedImage | RemoteImage


def find_image(
    data: Mapping[str, Any], key: str, own_hosts: Collection[str], label_studio_url: str
) -> TaskImage:
    """Return where the image of a task is.

    Args:
        data: Data of the task.
        key: Key of the image in it.
        own_hosts: Hosts, with ports, at which this server is reached.
        label_studio_url: URL that paths without a host belong to; empty if that is not known.

    Raises:
        InvalidRequest: The task names no image, or a path of an unknown Label Studio.
    """
    inference_id = data.get("inference_id")
    if isinstance(inference_id, str) and _ID.fullmatch(inference_id):
        return StoredImage(inference_id)
    link = data.get(key)
    if not isinstance(link, str) or not link or len(link) > MAX_URL_CHARACTERS:
        raise InvalidRequest(
            f"expected data.{key[:60]} to be the URL of an image, got {quoted(link, 80)}"
        )
    try:
        parts = urlsplit(link)
    except ValueError as error:
        raise InvalidRequest(f"expected data.{key[:60]} to be a URL, got: {error}") from error
    if parts.netloc in ("", *own_hosts):
        if (match := _INPUT.fullmatch(parts.path)) is not None:
            return StoredImage(match[1])
        if (match := _BLOB.fullmatch(parts.path)) is not None:
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            return SignedImage(match[1], query)
    if parts.netloc:
        return RemoteImage(link)
    if not label_studio_url:
        raise InvalidRequest(
            f"data.{key[:60]} is a path, {quoted(link, 80)}: the setting extras.label_studio.url has to say where Label Studio is"
        )
    return RemoteImage(urljoin(label_studio_url.rstrip("/") + "/", link))


FETCH_TIMEOUT_S = 20.0
"""Time for one image, with its redirects, from the look-up of the address to the last byte."""

MAX_REDIRECTS = 3
"""Redirects that are followed: Label Studio sends clients on to signed URLs of its storage."""

ACCESS_TOKEN_S = 240.0
"""Seconds that an access token is used; Label Studio's are valid for five minutes."""

_MAX_TOKEN_BYTES = 64 << 10
_TOKEN = re.compile(r"[\x21-\x7e]{1,8000}")
_FAILURES = (
    DeliveryError,
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
)
_REDIRECTS = {301, 302, 303, 307, 308}
_log = logging.getLogger("quadriga.label_studio")


class FetchError(Exception):
    """An image that was not fetched; the text may be shown to whoever asked for it."""


class ImageFetcher:
    """Fetches images; safe to use from several threads.

    Args:
        hosts: Hosts that images may come from.
        label_studio_url: URL of Label Studio, which is allowed, too; empty for none.
        token: Token of Label Studio, which is sent to its URL alone.
        max_bytes: Maximum size of an image.
        timeout_s: Time for one image.
    """

    def __init__(
        self,
        hosts: WebhookHosts,
        label_studio_url: str = "",
        token: str = "",
        *,
        max_bytes: int,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self.label_studio_url = label_studio_url
        self._others = HostConnections(hosts)
        self._home: HostConnections | None = None
        self._home_origin: tuple[str, str, int] | None = None
        if label_studio_url:
            parts = urlsplit(label_studio_url)
            self._home_origin = _origin(parts)
            named = parse_hosts(parts.hostname or "")
            self._home = HostConnections(named)
        self._token = token
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._access: tuple[str, float] = ("", 0.0)

    def fetch(self, url: str) -> bytes:
        """Return the image at a URL.

        Raises:
            InvalidRequest: The URL is none, its host is not allowed, or no image is there; what exactly failed at a
                host that the settings do not name is in the log alone.
        """
        deadline = DeliveryDeadline(self._timeout_s)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                status, location, data = self._get(url, deadline)
                if status not in _REDIRECTS:
                    break
                url = urljoin(url, location)
            else:
                raise FetchError(f"expected at most {MAX_REDIRECTS} redirects, got more")
            if status != 200:
                raise FetchError(f"expected the status 200, got {status}")
            if not is_image_file(data):
                raise FetchError("expected an image, got something else")
        except FetchError as error:
            raise InvalidRequest(f"cannot fetch {quoted(url, 200)}: {error}") from error
        return data

    def _get(self, url: str, deadline: DeliveryDeadline) -> tuple[int, str, bytes]:
        """Send one GET; return status, location and body."""
        parts = _split(url)
        is_home = self._home is not None and _origin(parts) == self._home_origin
        connections = self._home if is_home and self._home is not None else self._others
        if expected := connections.hosts.refusal(parts.hostname or ""):
            raise FetchError(f"expected {expected}, got {quoted(parts.hostname, 80)}")
        headers = {}
        if is_home and self._token:
            headers["Authorization"] = self._authorization(connections, parts, deadline)
        try:
            return _exchange(
                connections, parts, headers, max_bytes=self._max_bytes, deadline=deadline
            )
        except (DeliveryError, OSError, http.client.HTTPException, ValueError) as error:
            _log.warning("cannot fetch an image from %s: %s", parts.hostname, error)
            reason = str(error.reason) if isinstance(error, DeliveryError) else "no valid answer"
            is_named = connections.hosts.is_named(parts.hostname or "")
            raise FetchError(
                reason if is_named else "no image was got; the log says why"
            ) from error

    def _authorization(
        self, connections: HostConnections, url: SplitResult, deadline: DeliveryDeadline
    ) -> str:
        """Return the header for Label Studio; a personal access token is exchanged for a short one.

        Source: Label Studio, "Access tokens".
        """
        if self._token.count(".") != 2:
            return f"Token {self._token}"
        with self._lock:
            access, expires_s = self._access
            if time.monotonic() < expires_s:
                return f"Bearer {access}"
            target = url._replace(path="/api/token/refresh", query="", fragment="")
            headers = {"Content-Type": "application/json"}
            refresh = json.dumps({"refresh": self._token}).encode()
            try:
                status, _, data = _exchange(
                    connections,
                    target,
                    headers,
                    refresh,
                    max_bytes=_MAX_TOKEN_BYTES,
                    deadline=deadline,
                )
                access = json.loads(data)["access"] if status == 200 else ""
            except _FAILURES as error:
                raise FetchError("Label Studio gave no access token") from error
            if not isinstance(access, str) or _TOKEN.fullmatch(access) is None:
                raise FetchError("Label Studio gave no access token for extras.label_studio.token")
            self._access = access, time.monotonic() + ACCESS_TOKEN_S
            return f"Bearer {access}"


def _split(url: str) -> SplitResult:
    """Split a URL; raise a `FetchError` unless it is a plain one of http or https."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is none
        is_plain = url.isascii() and url.isprintable() and not set(url) & set(' "\\<>')
    except ValueError:
        is_plain = False
    if (
        not is_plain
        or parts.scheme not in DEFAULT_PORTS
        or not parts.hostname
        or "@" in parts.netloc
    ):
        raise FetchError("expected a URL of http or https with a host and no user")
    return parts


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port


def _exchange(
    connections: HostConnections,
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    max_bytes: int,
    deadline: DeliveryDeadline,
) -> tuple[int, str, bytes]:
    """Send a GET, or a POST with a body; return status, location and body of the answer; raises as `HostConnections`."""
    fields = {"Accept": "*/*", "Accept-Encoding": "identity", **headers}
    method = "POST" if body else "GET"
    with connections.exchange(method, url, fields, body, deadline=deadline) as response:
        location = response.headers.get("Location") or ""
        if response.status != 200:
            return response.status, location, b""
        if (response.length or 0) > max_bytes:
            raise FetchError(
                f"expected an image of at most {max_bytes} bytes, got {response.length}"
            )
        data = response.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise FetchError(f"expected an image of at most {max_bytes} bytes, got more")
        return response.status, location, data
