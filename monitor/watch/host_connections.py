"""Connections to hosts that a setting allows: within a whole time limit, to an address that was checked, without a proxy.

The address is looked up once, and the connection is made to what the look-up gave. A second look-up could give another
address than the one that was checked (DNS rebinding).
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import SplitResult

from quadriga.monitor.watch.webhooks import WebhookHosts, literal_address

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


class HostConnections:
    """Opens connections to allowed hosts; safe to use from several threads.

    Args:
        hosts: The allowed hosts.
        lookup: Returns the addresses of a host, as `socket.getaddrinfo` does.
        tls: How servers prove who they are; default: by the certificates that the system trusts.
    """

    def __init__(
        self,
        hosts: WebhookHosts,
        *,
        lookup: Lookup = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hosts = hosts
        self._lookup = lookup
        self._lookups = threading.BoundedSemaphore(MAX_LOOKUPS)
        self._tls = tls

    def connect(self, url: SplitResult, deadline: DeliveryDeadline) -> socket.socket:
        """Connect to the host of a URL, at an address that is allowed.

        Raises:
            DeliveryError: No address is allowed, or none answers in time.
        """
        host = url.hostname or ""
        try:
            endpoints = self._endpoints(host, url.port or DEFAULT_PORTS[url.scheme], deadline)
            return self._connect(host, endpoints, deadline)
        except TimeoutError as error:
            raise DeliveryError(NO_CONNECTION, error) from error

    @contextmanager
    def exchange(
        self,
        method: str,
        url: SplitResult,
        headers: Mapping[str, str],
        body: bytes,
        *,
        deadline: DeliveryDeadline,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request to an allowed address of its URL's host, and give its answer, of which the head is read.

        Raises:
            DeliveryError: As of `connect`.
            TimeoutError: The time is over.
            OSError, http.client.HTTPException, ValueError: The other side sends no valid answer.
        """
        fields = {"Host": url.netloc, "User-Agent": "quadriga", "Connection": "close", **headers}
        if body:
            fields["Content-Length"] = str(len(body))
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        with self.connect(url, deadline) as sock, ExitStack() as cleanup:
            try:
                sock.settimeout(deadline.remaining_s())
                connection = sock
                if url.scheme == "https":
                    connection = cleanup.enter_context(
                        self._tls_context().wrap_socket(
                            sock, server_hostname=url.hostname, do_handshake_on_connect=False
                        )
                    )
                # A time limit of a socket begins anew with each byte.
                timer = threading.Timer(deadline.remaining_s(), _shut_down, (connection,))
                cleanup.callback(timer.cancel)
                timer.daemon = True
                timer.start()
                if isinstance(connection, ssl.SSLSocket):
                    connection.do_handshake()
                client = http.client.HTTPConnection(url.netloc)
                client.sock = connection
                client.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
                for name, value in fields.items():
                    client.putheader(name, value)
                client.endheaders(body or None)
                with client.getresponse() as response:
                    yield response
                    deadline.remaining_s()  # what was read after its end is not whole
            except (OSError, http.client.HTTPException, ValueError):
                deadline.remaining_s()
                raise

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
            raise self._refusal(endpoints)
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
                raise self._refusal([endpoint])
        except BaseException:
            sock.close()
            raise
        return sock

    def _refusal(self, endpoints: Sequence[Endpoint]) -> DeliveryError:
        addresses = ", ".join(str(endpoint.address[0]) for endpoint in endpoints[:3])
        detail = f"{addresses or 'none'}; the setting {self.hosts.setting} says which are"
        return DeliveryError(REFUSED, detail)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _shut_down(connection: socket.socket) -> None:
    """End what another thread sends or receives; nothing if the connection is over."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of TLS, too, without its farewell
