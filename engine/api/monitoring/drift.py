"""HTTP routes for drift reports, which are jobs, for baselines, and for what people do about alarms."""

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, RawBody

from quadriga.engine.api.access import caller_scope, check_end_webhook
from quadriga.engine.api.openapi import (
    NOT_READY,
    NOT_STORED,
    TOO_LARGE,
    UNKNOWN_MODEL,
    body_errors,
    error_response,
    json_body,
)
from quadriga.engine.api.routes import delete, get, post, put
from quadriga.monitor.drift.baselines import Baseline, BaselineRequest
from quadriga.monitor.drift.parameters import DEFAULT_BASELINE, DriftParameters, decode_parameters
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.report.acknowledgements import (
    Acknowledgement,
    AcknowledgementBody,
    acknowledge,
    decode_acknowledgement,
    read_acknowledgement,
)
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import Mute, MuteBody, MuteStore, decode_mute
from quadriga.monitor.watch.webhooks import ANY_PUBLIC, WebhookHosts
from quadriga.proto.request import current_caller, note_target
from quadriga.store.jobs.jobs import Job
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.scope import Scoped

_UNREADABLE = error_response(
    "The body, a filter or a time cannot be understood, or the baseline is not found"
)
_UNKNOWN = error_response("The model is not known, or has no such baseline")
_DRIFT = json_body(
    DriftParameters,
    "schedule",
    baseline="Name of a baseline, or a window of the same model",
    windows="Windows per day, which share alpha",
)
_BASELINE = json_body(
    BaselineRequest,
    dataset="Value of meta.dataset_snapshot_id",
    rolling="Time before each compared window, such as 7d",
)


class BaselineList(msgspec.Struct, frozen=True):
    """The baselines of a model."""

    baselines: list[Baseline]
    """The baselines, sorted by name."""


def drift_routes(
    drift: Scoped[DriftService], hosts: WebhookHosts = ANY_PUBLIC
) -> list[HTTPRouteHandler]:
    """Return the handlers that submit drift reports and read, replace and remove baselines.

    Args:
        drift: Submits the jobs, and keeps the baselines.
        hosts: The hosts that ends of jobs may be told to.
    """
    path, errors = "/api/models/{name:str}/baseline", body_errors(_UNREADABLE)

    @post("/api/drift", need="monitor", operation=_DRIFT, errors=errors, status=202)
    def submit_drift(body: RawBody) -> Job:
        """Compare a window of stored inferences, as a job; the body is JSON whatever its content type."""
        check_end_webhook(decode_parameters(body).webhook, hosts)
        job = drift.within(caller_scope()).submit(body)
        note_target(job.id)
        return job

    @get(path, need="read", errors={400: _UNREADABLE, 404: UNKNOWN_MODEL, 503: NOT_READY})
    def list_baselines(name: FromPath[str]) -> BaselineList:
        """Return the baselines of a model."""
        return BaselineList(drift.within(caller_scope()).list_baselines(name))

    @put(path, need="monitor", operation=_BASELINE, errors=errors)
    def put_baseline(name: FromPath[str], body: RawBody) -> Baseline:
        """Save a baseline of a model; a job reads it. The body is JSON whatever its content type."""
        return drift.within(caller_scope()).put_baseline(name, body)

    @delete(path, need="monitor", errors={400: _UNREADABLE, 404: _UNKNOWN, 503: NOT_STORED})
    def delete_baseline(
        name: FromPath[str], baseline: FromQuery[str] = DEFAULT_BASELINE
    ) -> Baseline:
        """Remove a baseline of a model, and return it."""
        return drift.within(caller_scope()).delete_baseline(name, baseline)

    return [submit_drift, list_baselines, put_baseline, delete_baseline]


_ACKNOWLEDGE_PATH = "/api/reports/{report_id:str}/acknowledge"
_MUTE_PATH = "/api/models/{name:str}/drift-mute"
_NOTE = json_body(AcknowledgementBody, note="What is known or done, for the colleagues")
_MUTE = json_body(
    MuteBody,
    until="End of the mute: RFC 3339, within 90 days",
    signals="Names of the signals; empty for all",
    note="Reason, for the colleagues",
)
_NO_ALARM = error_response("The body cannot be understood, or the report has no alarm")
_NO_REPORT = error_response("No such report, or nobody acknowledged it")
_DAMAGED = error_response("The report cannot be read: it is damaged, or of a newer version")
_UNREADABLE_MUTE = error_response("The body, the time or the name cannot be understood")
_NOT_MUTED = error_response("The model is not known, or is not muted")


def drift_alarm_routes(
    reports: Scoped[ReportStore], mutes: MuteStore, inferences: Scoped[InferenceReader]
) -> list[HTTPRouteHandler]:
    """Return the handlers; `inferences` finds the model that a name means, `mutes` are those of all teams."""
    errors = {400: _NO_ALARM, 404: _NO_REPORT, 409: _DAMAGED, 413: TOO_LARGE, 503: NOT_STORED}

    @get(_ACKNOWLEDGE_PATH, need="read", errors={404: _NO_REPORT})
    def get_acknowledgement(report_id: FromPath[str]) -> Acknowledgement:
        """Return who acknowledged the alarm of a drift report first."""
        first = read_acknowledgement(reports.within(caller_scope()), report_id)
        if first is None:
            raise NotFoundError(f"acknowledgement not found: nobody acknowledged {report_id}")
        return first

    @post(_ACKNOWLEDGE_PATH, need="monitor", operation=_NOTE, errors=errors)
    def acknowledge_report(report_id: FromPath[str], body: RawBody) -> Acknowledgement:
        """Acknowledge the alarm of a drift report; the first acknowledgement stays, and is returned."""
        return acknowledge_as_caller(reports, report_id, decode_acknowledgement(body))

    mute_errors = {400: _UNREADABLE_MUTE, 404: _NOT_MUTED}

    @get(_MUTE_PATH, need="read", errors=mute_errors | {503: NOT_READY})
    def get_drift_mute(name: FromPath[str]) -> Mute:
        """Return until when alarms of a model are muted, which signals, and by whom."""
        scope = caller_scope()
        return mutes.within(scope).get(inferences.within(scope).names.resolve(name))

    @put(_MUTE_PATH, need="monitor", operation=_MUTE, errors=body_errors(_UNREADABLE_MUTE))
    def put_drift_mute(name: FromPath[str], body: RawBody) -> Mute:
        """Mute alarms of a model until a time; the body is JSON whatever its content type."""
        return mute_as_caller(mutes, inferences, name, decode_mute(body))

    @delete(_MUTE_PATH, need="monitor", errors=mute_errors | {503: NOT_STORED})
    def delete_drift_mute(name: FromPath[str]) -> Mute:
        """End the mute of a model now, and return it."""
        return unmute_as_caller(mutes, inferences, name)

    return [
        get_acknowledgement,
        acknowledge_report,
        get_drift_mute,
        put_drift_mute,
        delete_drift_mute,
    ]


def acknowledge_as_caller(
    reports: Scoped[ReportStore], report_id: str, body: AcknowledgementBody
) -> Acknowledgement:
    """Acknowledge the alarm of a report that the caller may see, in the caller's name; raises as `acknowledge`."""
    name = current_caller().name
    return acknowledge(reports.within(caller_scope()), report_id, name, body.note)


def mute_as_caller(
    mutes: MuteStore, inferences: Scoped[InferenceReader], name: str, body: MuteBody
) -> Mute:
    """Mute a model for the caller's team, in the caller's name; raises as `MuteStore.put`, and for unknown models."""
    scope = caller_scope()
    model = inferences.within(scope).names.resolve(name)
    return mutes.within(scope).put(model, body, current_caller().name)


def unmute_as_caller(mutes: MuteStore, inferences: Scoped[InferenceReader], name: str) -> Mute:
    """End the mute of a model for the caller's team; raises as `MuteStore.remove`, and for unknown models."""
    scope = caller_scope()
    return mutes.within(scope).remove(inferences.within(scope).names.resolve(name))
