"""Webhooks of schedules in requests and responses: which are allowed, and how their deliveries went."""

from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import asdict

from quadriga.monitor.watch.alerts import DeliveryStatus, Outbox
from quadriga.monitor.watch.schedules import ScheduleStore
from quadriga.monitor.watch.webhook_hosts import WebhookHosts
from quadriga.monitor.watch.webhooks import WebhookFormat

NOT_DELIVERED = (
    "expected a public host that accepts the alert in time, got none: the server's log says more"
)
"""The one error of hosts that the settings do not name: others would tell what is where in the server's network."""


class WebhookState(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and the state of its deliveries."""

    url: str
    format: WebhookFormat
    signed: bool
    """Whether it has a secret, which is never returned."""
    waiting: int
    """Deliveries that were not accepted yet."""
    given_up: int
    delivered_at: str | None
    """RFC 3339, UTC."""
    failed_at: str | None
    error: str | None
    """Error of the last failed delivery."""


def webhook_states(
    schedules: ScheduleStore[Any], model: str, hosts: WebhookHosts
) -> list[WebhookState]:
    """Return the state of the deliveries to the webhooks of a model's schedule.

    Args:
        schedules: Where the schedule is.
        model: Name of the model.
        hosts: The hosts that the settings name: of others, all errors read the same.

    Raises:
        NotFoundError: The model has no schedule.
    """
    outbox = Outbox(schedules)
    statuses, waiting = outbox.delivery_status(model), outbox.waiting(model)
    states = []
    for webhook in schedules.get(model).schedule.webhooks:
        status = asdict(statuses.get(webhook.url, DeliveryStatus()))
        if status["error"] and not hosts.is_named(urlsplit(webhook.url).hostname or ""):
            status["error"] = NOT_DELIVERED
        state = WebhookState(
            url=webhook.url,
            format=webhook.format,
            signed=webhook.secret is not None,
            waiting=waiting.get(webhook.url, 0),
            **status,
        )
        states.append(state)
    return states
