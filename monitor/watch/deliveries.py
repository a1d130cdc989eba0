"""Delivers alerts: a queue for each destination, so that a slow receiver delays no other, in few threads."""

import http.client
import logging
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import SplitResult, urlsplit

from quadriga.monitor.watch.alerts import MIN_PAUSE_S, Delivery, Outbox, WebhookMessage, message_of
from quadriga.monitor.watch.host_connections import (
    NO_ANSWER,
    NO_CONNECTION,
    DeliveryDeadline,
    DeliveryError,
    HostConnections,
    Lookup,
)
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts

POLL_INTERVAL_S = 1.0
MAX_THREADS = 16
MAX_UNPROVEN_THREADS = 12
"""Threads for destinations that were slow last time, or are new: however many are, proven ones find a thread."""
MAX_SLOW_THREADS = 8
"""Threads for destinations that were slow last time: however many are, new ones find a thread."""
SLOW_S = 2.0
"""Time of a delivery from which a destination is slow."""
_log = logging.getLogger(__name__)


_Waiting = tuple[Outbox, Delivery]

DeliverySpan = Callable[[str, str, str], AbstractContextManager[str]]
"""Records a delivery, by host, model and `traceparent`, while the block runs, to which the context for its receiver is handed."""


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
            self._post(parts, headers, body, deadline)
        except DeliveryError:
            if not self.hosts.is_named(parts.hostname or ""):
                deadline.wait()
            raise

    def _post(
        self, url: SplitResult, headers: Mapping[str, str], body: bytes, deadline: DeliveryDeadline
    ) -> None:
        fields = {"Content-Type": "application/json", **headers}
        try:
            with self._connections.exchange(
                "POST", url, fields, body, deadline=deadline
            ) as response:
                status = response.status
        except TimeoutError as error:
            raise DeliveryError(NO_ANSWER, error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DeliveryError(NO_CONNECTION, repr(error)) from error
        if not 200 <= status < 300:
            raise DeliveryError(f"expected a status of 200 to 299, got {status}")


class DeliveryQueues:
    """Delivers the alerts of outboxes, at most one at a time to each destination.

    Args:
        outboxes: Where alerts wait.
        client: Posts them.
        span: Records each try in the trace of its alert; None for no traces.
    """

    def __init__(
        self, outboxes: Sequence[Outbox], client: WebhookClient, span: DeliverySpan | None = None
    ) -> None:
        self._span = span
        self._outboxes = outboxes
        self._client = client
        self._threads: dict[str, threading.Thread] = {}
        """The threads that deliver, by destination."""
        self._is_slow: dict[str, bool] = {}
        """Whether the last delivery to a destination took long, mostly until it failed."""
        self._failing = ""
        """The latest error that was none of a receiver."""

    def start_due(self, now_s: float | None = None) -> None:
        """Start to deliver what is due at `now_s`, seconds since 1970, without waiting for any receiver."""
        self._threads = {
            destination: thread
            for destination, thread in self._threads.items()
            if thread.is_alive()
        }
        queues = defaultdict[str, list[_Waiting]](list)
        for outbox in (of_team for every in self._outboxes for of_team in every.of_teams()):
            for delivery in outbox.pending():
                if delivery.due_s <= (time.time() if now_s is None else now_s):
                    queues[urlsplit(delivery.url).netloc.lower()].append((outbox, delivery))
        # Those that were not tried yet are due since 1970, and so come first.
        for destination, queue in sorted(
            queues.items(), key=lambda item: min(delivery.due_s for _, delivery in item[1])
        ):
            if destination not in self._threads and self._has_thread_for(destination):
                thread = threading.Thread(
                    target=self._run, args=(destination, queue, now_s), name="alerts", daemon=True
                )
                self._threads[destination] = thread
                thread.start()

    def deliver(self, now_s: float | None = None) -> None:
        """Try the deliveries that are due, and wait for their ends."""
        self.start_due(now_s)
        self.join()

    def join(self) -> None:
        """Wait for the deliveries that were begun."""
        for thread in self._threads.values():
            thread.join()

    def _has_thread_for(self, destination: str) -> bool:
        if len(self._threads) >= MAX_THREADS:
            return False
        is_slow = self._is_slow.get(destination)
        if is_slow is False:
            return True
        unproven_count = sum(self._is_slow.get(busy, True) for busy in self._threads)
        slow_count = sum(self._is_slow.get(busy, False) for busy in self._threads)
        return unproven_count < MAX_UNPROVEN_THREADS and (
            not is_slow or slow_count < MAX_SLOW_THREADS
        )

    def _run(self, destination: str, queue: Sequence[_Waiting], now_s: float | None) -> None:
        try:
            self._deliver_queue(destination, queue, now_s)
        except Exception as error:  # noqa: BLE001 - as on a full disk; later alerts must still be delivered
            if self._failing != str(error):
                is_expected = isinstance(error, OSError)
                _log.warning("the alerts wait: %s", error, exc_info=not is_expected)
            self._failing = str(error)
            time.sleep(MIN_PAUSE_S)  # what could not be saved as tried is tried again

    def _deliver_queue(
        self, destination: str, queue: Sequence[_Waiting], now_s: float | None
    ) -> None:
        """Try the deliveries to a destination; a webhook that fails is not tried again within this call."""
        failed: set[str] = set()
        for outbox, delivery in queue:
            time_s = time.time() if now_s is None else now_s
            if delivery.url in failed:
                continue
            webhook = outbox.webhook(delivery)
            if webhook is None:
                outbox.drop(delivery)
                continue
            message, begin_s = message_of(webhook, delivery, time_s), time.monotonic()
            try:
                self._post(delivery, message)
            except DeliveryError as error:
                failed.add(delivery.url)
                self._is_slow[destination] = time.monotonic() - begin_s >= SLOW_S
                is_given_up = outbox.mark_failed(delivery, error.reason, time_s)
                _log_failure(delivery, error, is_given_up=is_given_up)
            else:
                self._is_slow[destination] = time.monotonic() - begin_s >= SLOW_S
                outbox.mark_delivered(delivery, time_s)

    def _post(self, delivery: Delivery, message: WebhookMessage) -> None:
        """Post a message, with the trace that it is part of; raises as `WebhookClient.post`."""
        host, context = urlsplit(delivery.url).hostname or "", delivery.traceparent
        span = (
            nullcontext(context)
            if self._span is None
            else self._span(host, delivery.model, context)
        )
        with span as traceparent:
            headers = {"traceparent": traceparent} if traceparent else {}
            self._client.post(delivery.url, {**message.headers, **headers}, message.body)


def run_deliveries(
    outboxes: Sequence[Outbox],
    client: WebhookClient,
    stop: threading.Event,
    span: DeliverySpan | None = None,
) -> None:
    """Deliver alerts as they become due, until `stop` is set."""
    queues, failing = DeliveryQueues(outboxes, client, span), ""
    while not stop.is_set():
        try:
            queues.start_due()
            failing = ""
        except Exception as error:  # noqa: BLE001 - as without free threads
            if str(error) != failing:
                _log.warning("the alerts wait: %s", error, exc_info=not isinstance(error, OSError))
            failing = str(error)
        stop.wait(POLL_INTERVAL_S)
    queues.join()


def _log_failure(delivery: Delivery, error: DeliveryError, *, is_given_up: bool) -> None:
    if is_given_up or delivery.tries == 0:
        host = urlsplit(delivery.url).netloc  # the path may be a secret
        outcome = "given up" if is_given_up else "tried again"
        subject = f"end of job {delivery.job}" if delivery.job else f"alert of {delivery.model}"
        _log.warning("%s to %s is %s: %s", subject, host, outcome, error)
