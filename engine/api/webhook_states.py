"""Schedules of models, of either kind, as routes read, replace and remove them, and how deliveries to their webhooks went."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import asdict

from quadriga.engine.api.access import caller_scope
from quadriga.monitor.watch.alerts import DeliveryStatus, Outbox
from quadriga.monitor.watch.schedules import ScheduleStore, ScheduleT
from quadriga.monitor.watch.webhook_hosts import WebhookHosts
from quadriga.monitor.watch.webhooks import (
    WebhookFormat,
    check_host,
    check_url,
    check_webhook_hosts,
)
from quadriga.proto.access import admit
from quadriga.proto.request import current_caller
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.scope import Scoped

State = TypeVar("State")

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


def check_end_webhook(url: EndWebhook, hosts: WebhookHosts) -> None:
    """Check the webhook of a job's end as those of schedules are checked.

    Raises:
        Forbidden: The caller may not monitor.
        QueryError: It is no URL, or of a host that alerts may not be sent to.
    """
    if url is not msgspec.UNSET:
        admit(current_caller(), "monitor")
        check_url(url, "webhook")
        check_host(url, "webhook", hosts)


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


class ModelSchedules(Generic[ScheduleT, State]):
    """The schedules of one kind, of all teams: each caller sees and changes those of its own.

    Args:
        every_team: The schedules.
        inferences: Finds the model that a name means.
        hosts: The hosts that alerts may be sent to.
        describe: Describes a model's schedule: gets the schedules, the model and the states of its webhooks.
    """

    def __init__(
        self,
        every_team: ScheduleStore[ScheduleT],
        inferences: Scoped[InferenceReader],
        hosts: WebhookHosts,
        describe: Callable[[ScheduleStore[ScheduleT], str, list[WebhookState]], State],
    ) -> None:
        self._every_team = every_team
        self._inferences = inferences
        self._hosts = hosts
        self._describe = describe

    def find(self, name: str) -> tuple[ScheduleStore[ScheduleT], str]:
        """Return the schedules of the caller's team, and the model that a name means."""
        scope = caller_scope()
        return self._every_team.within(scope), self._inferences.within(scope).names.resolve(name)

    def read(self, name: str) -> State:
        """Describe a model's schedule."""
        schedules, model = self.find(name)
        return self._describe(schedules, model, webhook_states(schedules, model, self._hosts))

    def replace(
        self,
        name: str,
        decode: Callable[[str], ScheduleT],
        complete: Callable[[str, ScheduleT], ScheduleT] = lambda _, schedule: schedule,
    ) -> State:
        """Set the schedule of a model, by whose name it is decoded, and completed once it is checked."""
        schedules, model = self.find(name)
        schedule = decode(model)
        self._inferences.within(caller_scope()).check_where(schedule.where)
        check_webhook_hosts(schedule.webhooks, self._hosts)
        schedules.put(model, complete(model, schedule))
        return self.read(name)

    def remove(self, name: str) -> State:
        """Remove a model's schedule; describe what it was."""
        schedules, model = self.find(name)
        last = self.read(name)
        schedules.remove(model)
        return last
