"""Posts a message to a webhook: within a whole time limit, to an address that was checked, without proxy or redirect.

The address is looked up once, and the connection is made to what the look-up gave. A second look-up could give another
address than the one that was checked (DNS rebinding).
"""

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from quadriga.monitor.watch.webhook_hosts import (
    ANY_PUBLIC,
    SETTING,
    WebhookHosts,
    literal_address,
)

DELIVERY_TIMEOUT_S = 10.0
"""Time of a delivery, from the look-up of the address to the headers of the answer."""
MAX_LOOKUPS = 32
"""Look-ups at once. The system may take half a minute for one, which cannot be ended."""
DEFAULT_PORTS = {"http": 80, "https": 443}

REFUSED = "expected an allowed address, got another"
NO_CONNECTION = "expected a connection, got none"
NO_ANSWER = "expected an answer in time, got none"

Lookup = Callable[..., Sequence[tuple[Any, ...]]]
"""A function as `socket.getaddrinfo`."""


class DeliveryError(Exception):
    """A failed delivery.

    Attributes:
        reason: What may be shown of it to whoever may know what the host is.
        detail: What the log has.
    """

    def __init__(self, reason: str, detail: object = "") -> None:
        super().__init__(f"{reason}: {detail}" if str(detail) else reason)
        self.reason = reason


class Endpoint(NamedTuple):
    """An address of a host, as sockets take it."""

    family: socket.AddressFamily
    address: tuple[Any, ...]


class DeliveryDeadline:
    """The end of a delivery."""

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Return the time that is left.

        Raises:
            TimeoutError: There is none.
        """
        remaining_s = self._end_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the time is over")
        return remaining_s

    def wait(self) -> None:
        """Wait for the end."""
        time.sleep(max(self._end_s - time.monotonic(), 0))


class WebhookClient:
    """Posts messages to webhooks; safe to use from several threads.

    Args:
        hosts: The hosts that messages may be sent to.
        timeout_s: Time of a delivery.
        lookup: Returns the addresses of a host, as `socket.getaddrinfo` does.
        tls: How servers prove who they are; default: by the certificates that the system trusts.
    """

    def __init__(
        self,
        hosts: WebhookHosts = ANY_PUBLIC,
        timeout_s: float = DELIVERY_TIMEOUT_S,
        *,
        lookup: Lookup = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hosts = hosts
        self.timeout_s = timeout_s
        self._lookup = lookup
        self._lookups = threading.BoundedSemaphore(MAX_LOOKUPS)
        self._tls = tls

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Post a message, and wait until it is accepted.

        A failure of a host that the settings do not name takes the whole time, whatever it was: so how long it took
        does not say what is there.

        Raises:
            DeliveryError: It was not accepted.
        """
        deadline = DeliveryDeadline(self.timeout_s)
        parts = urlsplit(url)
        try:
            self._post(parts, _request(parts, headers, body), deadline)
        except DeliveryError:
            if not self.hosts.is_named(parts.hostname or ""):
                deadline.wait()
            raise

    def _post(self, url: SplitResult, request: bytes, deadline: DeliveryDeadline) -> None:
        host = url.hostname or ""
        try:
            endpoints = self._endpoints(host, url.port or DEFAULT_PORTS[url.scheme], deadline)
            sock = self._connect(host, endpoints, deadline)
        except TimeoutError as error:
            raise DeliveryError(NO_CONNECTION, error) from error
        with sock:
            try:
                status = self._exchange(sock, url, request, deadline)
            except TimeoutError as error:
                raise DeliveryError(NO_ANSWER, error) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise DeliveryError(NO_CONNECTION, repr(error)) from error
        if not 200 <= status < 300:
            raise DeliveryError(f"expected a status of 200 to 299, got {status}")

    def _endpoints(self, host: str, port: int, deadline: DeliveryDeadline) -> list[Endpoint]:
        """Look up a host, and return those of its addresses that messages may be sent to."""
        literal = literal_address(host)
        try:
            if literal is None:
                entries = self._look_up(host, port, deadline)
            else:  # this asks nobody, and so ends at once
                entries = self._lookup(str(literal), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise DeliveryError(NO_CONNECTION, repr(error)) from error
        endpoints = [Endpoint(entry[0], entry[4]) for entry in entries]
        allowed = [
            endpoint
            for endpoint in endpoints
            if self.hosts.is_allowed(host, ip_address(endpoint.address[0]))
        ]
        if not allowed:
            raise _refusal(endpoints)
        return allowed

    def _look_up(
        self, name: str, port: int, deadline: DeliveryDeadline
    ) -> Sequence[tuple[Any, ...]]:
        """Look up a name in a thread of its own, as nothing but its end ends a look-up."""
        if not self._lookups.acquire(timeout=deadline.remaining_s()):
            raise TimeoutError("other look-ups take all the time")
        answers = SimpleQueue[Sequence[tuple[Any, ...]] | Exception]()

        def run() -> None:
            try:
                answers.put(self._lookup(name, port, type=socket.SOCK_STREAM))
            except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
                answers.put(error)
            finally:
                self._lookups.release()

        try:
            threading.Thread(target=run, name="webhook-lookup", daemon=True).start()
        except RuntimeError:  # there are too many threads
            self._lookups.release()
            raise
        try:
            answer = answers.get(timeout=deadline.remaining_s())
        except Empty as error:
            raise TimeoutError("the look-up of the address takes too long") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _connect(
        self, host: str, endpoints: Sequence[Endpoint], deadline: DeliveryDeadline
    ) -> socket.socket:
        """Connect to the first address that answers; each has its share of the time."""
        failure: Exception = OSError("the host has no address")
        for position, endpoint in enumerate(endpoints):
            try:
                share_s = deadline.remaining_s() / (len(endpoints) - position)
                return self._connect_to(host, endpoint, share_s)
            except OSError as error:
                failure = error
        raise DeliveryError(NO_CONNECTION, repr(failure)) from failure

    def _connect_to(self, host: str, endpoint: Endpoint, timeout_s: float) -> socket.socket:
        """Connect to an address, unless it is one of this machine that the settings do not name.

        Services that no firewall lets others reach may listen at a public address of this machine.
        """
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(endpoint.address)
            own, peer = sock.getsockname()[0], sock.getpeername()[0]
            if own == peer and not self.hosts.is_listed(host, ip_address(peer)):
                raise _refusal([endpoint])
        except BaseException:
            sock.close()
            raise
        return sock

    def _exchange(
        self, sock: socket.socket, url: SplitResult, request: bytes, deadline: DeliveryDeadline
    ) -> int:
        """Send a request, and return the status of its answer, whose body is not read."""
        connection = sock
        if url.scheme == "https":
            sock.settimeout(deadline.remaining_s())
            connection = self._tls_context().wrap_socket(sock, server_hostname=url.hostname)
        try:
            unsent = memoryview(request)
            while unsent:
                connection.settimeout(deadline.remaining_s())
                unsent = unsent[connection.send(unsent) :]
            incoming: Any = _Incoming(connection, deadline)
            response = http.client.HTTPResponse(incoming, method="POST")
            with response:
                response.begin()
                return response.status
        finally:
            if connection is not sock:
                connection.close()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


class _Incoming(io.RawIOBase):
    """The bytes that a connection receives until a deadline, however slowly they come; for `HTTPResponse`."""

    def __init__(self, connection: socket.socket, deadline: DeliveryDeadline) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader of the bytes, as `HTTPResponse` wants it of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes, for as long as there is time."""
        self._connection.settimeout(self._deadline.remaining_s())
        return self._connection.recv_into(buffer)


def _request(url: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a request, head and body; a URL that was checked has neither spaces nor line ends."""
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    lines = [f"POST {target} HTTP/1.1", f"Host: {url.netloc}"]
    fields = {
        "Content-Type": "application/json",
        "User-Agent": "quadriga",
        **headers,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _refusal(endpoints: Sequence[Endpoint]) -> DeliveryError:
    addresses = ", ".join(str(endpoint.address[0]) for endpoint in endpoints[:3])
    return DeliveryError(REFUSED, f"{addresses or 'none'}; the setting {SETTING} says which are")
