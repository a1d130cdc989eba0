"""Messages to webhooks: headers and body of a delivery, in the form that the webhook asks for.

Source: Standard Webhooks 1.0.0; version 4 of the body that Alertmanager sends to webhooks.
"""

import base64
import hashlib
import hmac
from typing import Any, NamedTuple

import msgspec

from quadriga.monitor.watch.webhooks import Webhook, standard_key
from quadriga.store.records.records import timestamp_text

NOT_OVER = "0001-01-01T00:00:00Z"
"""What Alertmanager writes as the end of an alert that is not over."""
MAX_SIGNALS = 10
"""Signals that the text of an alert names."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one webhook; a file of the outbox, of 0.1.0 without the last four fields."""

    id: str
    model: str
    url: str
    body: str
    """The event, as the format `quadriga` sends it."""
    tries: int = 0
    due_s: float = 0.0
    """When to try next, in seconds since 1970."""
    queued_s: float | None = None
    """When the event was queued, in seconds since 1970."""
    alarm_start: str | None = None
    """Start of the first window of the alarm, RFC 3339, UTC."""
    traceparent: str = ""
    """Trace of the job that found it, as W3C's header has it; empty for none."""
    job: str = ""
    """Id of the job whose end it tells to the job's own webhook; empty for an alert."""


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
        "timestamp": _event_time(event, delivery),
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


def _event_time(event: dict[str, Any], delivery: Delivery) -> str:
    if delivery.queued_s is None:  # queued by 0.1.0
        end: str = event["window"]["to"]
        return end
    return timestamp_text(int(delivery.queued_s * 1000))
