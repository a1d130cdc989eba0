"""Alerts, and ends of jobs: deliveries to webhooks wait in a folder, each as a file, until they are accepted or given up."""

import base64
import hashlib
import hmac
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from quadriga.monitor.model_files import model_file_path, read_model_file, write_model_file
from quadriga.monitor.watch.schedules import ScheduleStore
from quadriga.monitor.watch.webhooks import Webhook, standard_key
from quadriga.store.jobs.jobs import Job
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.records import timestamp_text

OUTBOX_FOLDER = "outbox"
STATUS_SUFFIX = "deliveries.json"
ALARM_SUFFIX = "alarm.json"
MIN_PAUSE_S = 5.0
MAX_PAUSE_S = 3600.0
MAX_TRIES = 10


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


class _Alarm(msgspec.Struct, frozen=True):
    start: str | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one webhook; a file of the outbox."""

    id: str
    model: str
    url: str
    body: str
    """The event, as the format `quadriga` sends it."""
    tries: int = 0
    due_s: float = 0.0
    """When to try next, in seconds since 1970."""
    queued_s: float
    """When the event was queued, in seconds since 1970."""
    alarm_start: str | None = None
    """Start of the first window of the alarm, RFC 3339, UTC."""
    traceparent: str = ""
    """Trace of the job that found it, as W3C's header has it; empty for none."""
    job: str = ""
    """Id of the job whose end it tells to the job's own webhook; empty for an alert."""


class Outbox:
    """The pending deliveries of schedules, in a folder beside them; safe to use from several threads."""

    def __init__(self, schedules: ScheduleStore[Any]) -> None:
        self._schedules = schedules
        self._directory = schedules.directory
        self._folder = schedules.directory / OUTBOX_FOLDER
        self._status_lock = threading.Lock()
        self._of_teams: dict[str, Outbox] = {schedules.team: self}

    def of_teams(self) -> "list[Outbox]":
        """Return the pending deliveries of the schedules of each team."""
        return [
            self._of_teams.setdefault(schedules.team, Outbox(schedules))
            for schedules in self._schedules.of_teams()
        ]

    def queue(
        self,
        model: str,
        event: str,
        fields: dict[str, Any],
        now_s: float | None = None,
        *,
        traceparent: str = "",
    ) -> None:
        """Queue an alert about a report for each webhook of the model's schedule, as part of a trace if there is one.

        Queued again, a delivery has the same id: it replaces the first if that still waits, and otherwise its
        receiver recognises the duplicate.

        Raises:
            OSError: A file could not be written.
        """
        body = msgspec.json.encode({"event": event, "model": model, **fields}).decode()
        report = fields["report"].rpartition("/")[2]
        webhooks = self._webhooks(model)
        alarm_start = self._alarm_start(
            model, event, fields["window"]["from"], is_saved=bool(webhooks)
        )
        for url in webhooks:
            delivery = Delivery(
                id=_delivery_id(report, event, url),
                model=model,
                url=url,
                body=body,
                queued_s=time.time() if now_s is None else now_s,
                alarm_start=alarm_start,
                traceparent=traceparent,
            )
            write_model_file(self._path(delivery), delivery)

    def queue_end(self, job: Job) -> None:
        """Queue a message about the end of a job to the webhook that it names; queued again, it has the same id.

        Raises:
            OSError: The file could not be written.
        """
        url = job.parameters["webhook"]
        has_report = job.state == "succeeded" and job.kind in {"drift", "evaluation"}
        fields = {
            "event": "ended",
            "job": job.id,
            "kind": job.kind,
            "state": job.state,
            "error": job.error,
            "report": f"/api/reports/{job.id}" if has_report else None,
            "result": None if job.result is None else f"/api/jobs/{job.id}/result",
        }
        delivery = Delivery(
            id=_delivery_id(job.id, "ended", url),
            model="",
            url=url,
            body=msgspec.json.encode(fields).decode(),
            queued_s=time.time(),
            traceparent=job.traceparent or "",
            job=job.id,
        )
        write_model_file(self._path(delivery), delivery)

    def pending(self) -> Iterator[Delivery]:
        """Yield the deliveries that wait, in the order of their reports."""
        for path in sorted(self._folder.glob("*.json")):
            delivery = read_model_file(path, Delivery)
            if delivery is not None:  # otherwise the file is gone, or damaged
                yield delivery

    def webhook(self, delivery: Delivery) -> Webhook | None:
        """Return the webhook of a delivery; None if it was removed from the schedule since."""
        if delivery.job:
            return Webhook(delivery.url)
        return self._webhooks(delivery.model).get(delivery.url)

    def drop(self, delivery: Delivery) -> None:
        """Forget a delivery."""
        self._path(delivery).unlink(missing_ok=True)

    def mark_delivered(self, delivery: Delivery, now_s: float) -> None:
        """Save that a delivery was accepted.

        Raises:
            OSError: The status could not be written.
        """
        self.drop(delivery)  # first, as on a full disk nothing else can be done
        self._update_status(delivery, delivered_at=_timestamp(now_s))

    def mark_failed(self, delivery: Delivery, error: str, now_s: float) -> bool:
        """Save that a try failed: the delivery is tried again later, or given up; return whether it is.

        Raises:
            OSError: A file could not be written.
        """
        tries = delivery.tries + 1
        is_given_up = tries >= MAX_TRIES
        if is_given_up:
            self.drop(delivery)
        else:
            due_s = now_s + min(MIN_PAUSE_S * 3 ** (tries - 1), MAX_PAUSE_S)
            write_model_file(self._path(delivery), replace(delivery, tries=tries, due_s=due_s))
        self._update_status(delivery, is_given_up, failed_at=_timestamp(now_s), error=error)
        return is_given_up

    def delivery_status(self, model: str) -> dict[str, DeliveryStatus]:
        """Return the status of the deliveries to the webhooks of a model, by URL."""
        return (
            read_model_file(model_file_path(self._directory, model, STATUS_SUFFIX), _StatusByUrl)
            or _StatusByUrl()
        ).urls

    def waiting(self, model: str) -> dict[str, int]:
        """Return the number of pending deliveries of a model, by URL."""
        return Counter(delivery.url for delivery in self.pending() if delivery.model == model)

    def _path(self, delivery: Delivery) -> Path:
        return self._folder / f"{delivery.id}.json"

    def _webhooks(self, model: str) -> dict[str, Webhook]:
        """Return the webhooks of a model's schedule, by URL; none if the schedule was removed since."""
        with suppress(NotFoundError):
            return {hook.url: hook for hook in self._schedules.get(model).schedule.webhooks}
        return {}

    def _alarm_start(
        self, model: str, event: str, window_start: str | None, *, is_saved: bool
    ) -> str | None:
        """Return the start of the first window of an alarm, which is saved until the alarm is over."""
        path = model_file_path(self._directory, model, ALARM_SUFFIX)
        alarm = read_model_file(path, _Alarm) or _Alarm(window_start)
        if event == "recovered":
            path.unlink(missing_ok=True)
        elif is_saved:
            write_model_file(path, alarm)
        return alarm.start

    def _update_status(self, delivery: Delivery, given_up: int = 0, **changed: str) -> None:
        if delivery.job:  # of no schedule, which would show it
            return
        with self._status_lock:
            urls = self.delivery_status(delivery.model)
            previous = urls.get(delivery.url, DeliveryStatus())
            given_up += previous.given_up
            urls[delivery.url] = replace(previous, given_up=given_up, **changed)
            write_model_file(
                model_file_path(self._directory, delivery.model, STATUS_SUFFIX), _StatusByUrl(urls)
            )


def _delivery_id(report: str, event: str, url: str) -> str:
    return f"{report}-{event}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _timestamp(seconds: float) -> str:
    return timestamp_text(int(seconds * 1000))


NOT_OVER = "0001-01-01T00:00:00Z"
"""What Alertmanager writes as the end of an alert that is not over."""
MAX_SIGNALS = 10
"""Signals that the text of an alert names."""


class WebhookMessage(NamedTuple):
    """What is posted."""

    headers: dict[str, str]
    body: bytes


class _AlertText(NamedTuple):
    name: str
    summary: str
    description: str


def message_of(webhook: Webhook, delivery: Delivery, now_s: float) -> WebhookMessage:
    """Return the message of a delivery to a webhook, signed with the time of this try, seconds since 1970."""
    timestamp = str(int(now_s))
    if webhook.format == "quadriga":
        body = delivery.body.encode()
        headers = {"Quadriga-Delivery": delivery.id, "Quadriga-Timestamp": timestamp}
        if webhook.secret is not None:
            headers["Quadriga-Signature"] = quadriga_signature(webhook.secret, timestamp, body)
        return WebhookMessage(headers, body)
    event = msgspec.json.decode(delivery.body)
    content = (
        _alertmanager(event, delivery)
        if webhook.format == "alertmanager"
        else _standard(event, delivery)
    )
    body = msgspec.json.encode(content)
    headers = {"webhook-id": delivery.id, "webhook-timestamp": timestamp}
    if webhook.secret is not None:
        headers["webhook-signature"] = standard_signature(
            webhook.secret, delivery.id, timestamp=timestamp, body=body
        )
    return WebhookMessage(headers, body)


def quadriga_signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header `Quadriga-Signature`."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def standard_signature(secret: str, message_id: str, *, timestamp: str, body: bytes) -> str:
    """Return the value of the header `webhook-signature`.

    Raises:
        ValueError: The secret begins as those of Standard Webhooks do, and is none.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(standard_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _standard(event: dict[str, Any], delivery: Delivery) -> dict[str, Any]:
    kind, name = event.get("kind", "drift"), event["event"]
    data = {"kind": kind, **{key: value for key, value in event.items() if key != "event"}}
    return {
        "type": f"{kind}.{'alarm' if name == 'drift' else name}",
        "timestamp": timestamp_text(int(delivery.queued_s * 1000)),
        "data": data,
    }


def _alertmanager(event: dict[str, Any], delivery: Delivery) -> dict[str, Any]:
    """Return a group of one alert: the alarm of a model, which has the same fingerprint until it is over."""
    text, window = _alert_text(event), event["window"]
    status = "resolved" if event["event"] == "recovered" else "firing"
    group = {"alertname": text.name, "model": event["model"]}
    labels = {**group, "severity": "warning"}
    annotations = {
        "summary": text.summary,
        "description": text.description,
        "report": event["report"],
    }
    alert = {
        "status": status,
        "labels": labels,
        "annotations": annotations,
        "startsAt": delivery.alarm_start or window["from"],
        "endsAt": window["to"] if status == "resolved" else NOT_OVER,
        "generatorURL": "",
        "fingerprint": hashlib.sha256(msgspec.json.encode(labels)).hexdigest()[:16],
    }
    key = ", ".join(
        f"{name}={msgspec.json.encode(value).decode()}" for name, value in group.items()
    )
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{key}}}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "quadriga",
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [alert],
    }


def _alert_text(event: dict[str, Any]) -> _AlertText:
    model, window, is_over = event["model"], event["window"], event["event"] == "recovered"
    span = f"from {window['from']} to {window['to']}"
    if event.get("kind") == "evaluation":
        metric = event["metric"]["name"]
        summary = f"{metric} of {model} {'has recovered' if is_over else 'has fallen'}"
        return _AlertText("QuadrigaEvaluation", summary, f"{event['reason'] or summary}, {span}")
    signals = event["signals"]
    names = ", ".join(
        f"{signal['name']} (effect {signal['effect']:.3g})"
        if signal["effect"] is not None
        else signal["name"]
        for signal in signals[:MAX_SIGNALS]
    )
    if len(signals) > MAX_SIGNALS:
        names += f" and {len(signals) - MAX_SIGNALS} more"
    summary = f"drift of {model} {'is over' if is_over else 'began or grew'}"
    return _AlertText("QuadrigaDrift", summary, f"{names} {span}")
