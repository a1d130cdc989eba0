"""Alerts: deliveries to webhooks wait in a folder, each as a file, until they are accepted or given up.

As in Standard Webhooks, but with headers of our own: a delivery has the same id at each try, and the signature
covers its time and body.
"""

import hashlib
import hmac
import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.monitor.watch.schedules import ScheduleStore, Webhook
from quadriga.store.errors import NotFoundError
from quadriga.store.records import timestamp_text

OUTBOX_FOLDER = "outbox"
STATUS_SUFFIX = "deliveries.json"

POLL_INTERVAL_S = 1.0
DELIVERY_TIMEOUT_S = 10.0
MIN_PAUSE_S = 5.0
MAX_PAUSE_S = 3600.0
MAX_TRIES = 10
_log = logging.getLogger(__name__)


class Delivery(msgspec.Struct, frozen=True):
    """One message to one webhook."""

    id: str
    model: str
    url: str
    body: str
    tries: int = 0
    due_s: float = 0.0
    """When to try next, in seconds since 1970."""


class DeliveryStatus(msgspec.Struct, frozen=True):
    """Status of the deliveries to a webhook."""

    delivered_at: str | None = None
    """Time of the latest successful delivery, RFC 3339, UTC."""
    failed_at: str | None = None
    """Time of the latest try that failed."""
    error: str | None = None
    """Error of the latest try that failed."""
    given_up: int = 0
    """Number of deliveries that were given up."""


class _StatusByUrl(msgspec.Struct, frozen=True):
    urls: dict[str, DeliveryStatus] = {}


class Outbox:
    """The pending deliveries of schedules, in a folder beside them."""

    def __init__(self, schedules: ScheduleStore[Any]) -> None:
        self._schedules = schedules
        self._directory = schedules.directory
        self._folder = schedules.directory / OUTBOX_FOLDER

    def queue(self, model: str, event: str, fields: dict[str, Any]) -> None:
        """Queue an alert about a report for each webhook of the model's schedule.

        Queued again, a delivery has the same id: it replaces the first if that still waits, and otherwise its
        receiver recognises the duplicate.

        Raises:
            OSError: A file could not be written.
        """
        body = msgspec.json.encode({"event": event, "model": model, **fields}).decode()
        report = fields["report"].rpartition("/")[2]
        for url in self._webhooks(model):
            url_hash = hashlib.sha256(url.encode()).hexdigest()[:8]
            delivery = Delivery(f"{report}-{event}-{url_hash}", model, url, body)
            self._folder.mkdir(parents=True, exist_ok=True)
            write_model_file(self._folder / f"{delivery.id}.json", delivery)

    def deliver(self, now_s: float | None = None) -> None:
        """Try the deliveries that are due; a webhook that fails is not tried again within this call.

        Raises:
            OSError: The status of a delivery could not be written.
        """
        failed: set[str] = set()
        for path, delivery in self._pending():
            time_s = time.time() if now_s is None else now_s
            if delivery.due_s > time_s or delivery.url in failed:
                continue
            hook = self._webhooks(delivery.model).get(delivery.url)
            if hook is None:  # removed from the schedule since
                path.unlink(missing_ok=True)
                continue
            error = post_delivery(hook, delivery, time_s)
            if error is None:
                self._update_status(delivery, delivered_at=_timestamp(time_s))
                path.unlink(missing_ok=True)
            else:
                failed.add(delivery.url)
                self._reschedule(path, delivery, error, time_s)

    def delivery_status(self, model: str) -> dict[str, DeliveryStatus]:
        """Return the status of the deliveries to the webhooks of a model, by URL."""
        return (
            read_model_file(model_file_path(self._directory, model, STATUS_SUFFIX), _StatusByUrl)
            or _StatusByUrl()
        ).urls

    def waiting(self, model: str) -> dict[str, int]:
        """Return the number of pending deliveries of a model, by URL."""
        return Counter(delivery.url for _, delivery in self._pending() if delivery.model == model)

    def _pending(self) -> Iterator[tuple[Path, Delivery]]:
        for path in sorted(self._folder.glob("*.json")):
            delivery = read_model_file(path, Delivery)
            if delivery is not None:  # otherwise the file is gone, or damaged
                yield path, delivery

    def _webhooks(self, model: str) -> dict[str, Webhook]:
        """Return the webhooks of a model's schedule, by URL; none if the schedule was removed since."""
        with suppress(NotFoundError):
            return {hook.url: hook for hook in self._schedules.get(model).schedule.webhooks}
        return {}

    def _reschedule(self, path: Path, delivery: Delivery, error: str, now_s: float) -> None:
        tries = delivery.tries + 1
        is_given_up = tries >= MAX_TRIES
        if is_given_up:
            path.unlink(missing_ok=True)
        else:
            due_s = now_s + min(MIN_PAUSE_S * 3 ** (tries - 1), MAX_PAUSE_S)
            write_model_file(path, replace(delivery, tries=tries, due_s=due_s))
        if is_given_up or tries == 1:
            host = urlsplit(delivery.url).netloc  # the path may be a secret
            outcome = "given up" if is_given_up else "tried again"
            _log.warning("alert of %s to %s is %s: %s", delivery.model, host, outcome, error)
        self._update_status(delivery, is_given_up, failed_at=_timestamp(now_s), error=error)

    def _update_status(self, delivery: Delivery, given_up: int = 0, **changed: str) -> None:
        urls = self.delivery_status(delivery.model)
        previous = urls.get(delivery.url, DeliveryStatus())
        given_up += previous.given_up
        urls[delivery.url] = replace(previous, given_up=given_up, **changed)
        write_model_file(
            model_file_path(self._directory, delivery.model, STATUS_SUFFIX), _StatusByUrl(urls)
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a delivery signed for one host must not go to another."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_delivery(hook: Webhook, delivery: Delivery, now_s: float) -> str | None:
    """Try a delivery once, and return the error, or None."""
    timestamp, body = str(int(now_s)), delivery.body.encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "quadriga",
        "Quadriga-Delivery": delivery.id,
        "Quadriga-Timestamp": timestamp,
    }
    if hook.secret is not None:
        headers["Quadriga-Signature"] = signature(hook.secret, timestamp, body)
    request = urllib.request.Request(hook.url, body, headers)  # noqa: S310 - http or https, as was checked
    try:
        with urllib.request.build_opener(_NoRedirect).open(
            request, timeout=DELIVERY_TIMEOUT_S
        ) as response:
            status = response.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        return f"expected an answer, got: {reason}"
    return None if 200 <= status < 300 else f"expected a status of 200 to 299, got {status}"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header `Quadriga-Signature`."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def run_deliveries(outbox: Outbox, stop: threading.Event) -> None:
    """Deliver alerts as they become due, until `stop` is set."""
    failing = ""
    while not stop.is_set():
        try:
            outbox.deliver()
            failing = ""
        except Exception as error:  # noqa: BLE001 - as on a full disk; later alerts must still be delivered
            if str(error) != failing:
                _log.warning("the alerts wait: %s", error, exc_info=not isinstance(error, OSError))
            failing = str(error)
        stop.wait(POLL_INTERVAL_S)


def _timestamp(seconds: float) -> str:
    return timestamp_text(int(seconds * 1000))
