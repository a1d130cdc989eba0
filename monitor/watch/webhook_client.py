"""Posts a message to a webhook: within a whole time limit, to an address that was checked, without proxy or redirect."""

import http.client
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from quadriga.monitor.watch.host_connections import (
    NO_ANSWER,
    NO_CONNECTION,
    DeliveryDeadline,
    DeliveryError,
    HostConnections,
    Lookup,
)
from quadriga.monitor.watch.webhook_hosts import ANY_PUBLIC, WebhookHosts

DELIVERY_TIMEOUT_S = 10.0
"""Time of a delivery, from the look-up of the address to the headers of the answer."""


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
        self._connections = HostConnections(hosts, lookup=lookup, tls=tls)

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
        with self._connections.connect(url, deadline) as sock:
            try:
                with self._connections.exchange(sock, url, request, deadline) as response:
                    status = response.status
            except TimeoutError as error:
                raise DeliveryError(NO_ANSWER, error) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise DeliveryError(NO_CONNECTION, repr(error)) from error
        if not 200 <= status < 300:
            raise DeliveryError(f"expected a status of 200 to 299, got {status}")


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
