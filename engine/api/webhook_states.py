"""State of the deliveries to a schedule's webhooks, as responses have it."""

from typing import Any

import msgspec
from msgspec.structs import asdict

from quadriga.monitor.watch.alerts import DeliveryStatus, Outbox
from quadriga.monitor.watch.schedules import ScheduleStore


class WebhookState(msgspec.Struct, frozen=True):
    """A webhook and the state of its deliveries."""

    url: str
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


def webhook_states(schedules: ScheduleStore[Any], model: str) -> list[WebhookState]:
    """Return the state of the deliveries to the webhooks of a model's schedule.

    Raises:
        NotFoundError: The model has no schedule.
    """
    outbox = Outbox(schedules)
    statuses, waiting = outbox.delivery_status(model), outbox.waiting(model)
    return [
        WebhookState(
            url=webhook.url,
            signed=webhook.secret is not None,
            waiting=waiting.get(webhook.url, 0),
            **asdict(statuses.get(webhook.url, DeliveryStatus())),
        )
        for webhook in schedules.get(model).schedule.webhooks
    ]
