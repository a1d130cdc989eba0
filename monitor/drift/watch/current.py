"""The drift comparison that says how a model is now, of all that a schedule and people made."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from quadriga.monitor.drift.watch.schedules import DriftSchedule
from quadriga.monitor.report.acknowledgements import read_acknowledgement
from quadriga.monitor.report.saved import ReportStore, ReportSummary
from quadriga.monitor.watch.schedules import ScheduleStore
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.scope import EVERYTHING, Scope


class CurrentReport(NamedTuple):
    """The report that says how a model is now."""

    summary: ReportSummary
    is_over: bool = False
    """Whether it has an alarm, and a later comparison has none."""


class CurrentDrift:
    """Chooses the report that says how a model is now.

    Args:
        reports: The reports.
        schedules: The schedules of drift comparisons; those of no team stand for those of all teams.
        scope: The scope of the caller, which `reports` are within.
    """

    def __init__(
        self,
        reports: ReportStore,
        schedules: ScheduleStore[DriftSchedule],
        scope: Scope = EVERYTHING,
    ) -> None:
        self._reports = reports
        self._schedules = schedules
        self._scope = scope

    def within(self, scope: Scope) -> "CurrentDrift":
        """Return what chooses among the reports that a scope covers, by the schedules of its team, of all for none."""
        return CurrentDrift(self._reports.within(scope), self._schedules, scope)

    def choose(self, model: str, summaries: Sequence[ReportSummary]) -> CurrentReport | None:
        """Return the report that says how a model is now; None without any.

        It is the newest of `comparisons_that_count`, but an alarm stays until somebody acknowledges it, whatever came
        later, and from then on until a later comparison has nothing to say against it. Who acknowledges an alarm has seen
        those before it, too.

        Args:
            model: Name of the model.
            summaries: Its drift reports, the newest first.
        """
        is_scheduled = any(summary.is_scheduled for summary in summaries) and (
            model in self._scheduled_models
        )
        listed = comparisons_that_count(summaries, is_scheduled=is_scheduled)
        return current_report(listed, self._is_acknowledged)

    @cached_property
    def _scheduled_models(self) -> set[str]:
        """Names of the models that have a schedule when they are asked for first."""
        schedules = self._schedules.within(self._scope)
        of_teams = [schedules] if schedules.team else schedules.of_teams()
        return {model for of_team in of_teams for model in of_team.models()}

    def _is_acknowledged(self, report_id: str) -> bool:
        try:
            return read_acknowledgement(self._reports, report_id) is not None
        except NotFoundError:  # removed since
            return True


def comparisons_that_count(
    summaries: Sequence[ReportSummary], *, is_scheduled: bool
) -> Sequence[ReportSummary]:
    """Return the comparisons that say how a model is, in their order.

    While a schedule compares the model they are those of the schedule: what somebody compares beside it, with a filter or
    a time of their own, does not replace what it said. Else they are those of all of the model's images, and of a part of
    them only if there are no others.
    """
    if is_scheduled and (scheduled := [s for s in summaries if s.is_scheduled]):
        return scheduled
    return [summary for summary in summaries if not summary.filter] or summaries


def current_report(
    summaries: Sequence[ReportSummary], is_acknowledged: Callable[[str], bool]
) -> CurrentReport | None:
    """Return the newest alarm of comparisons that count if it was not acknowledged, or not cleared since; else the newest.

    A comparison that could not judge what moved clears nothing.
    """
    for place, summary in enumerate(summaries):
        if summary.status == "drift":
            is_over = any(s.status == "ok" and not s.undecided for s in summaries[:place])
            if is_over and is_acknowledged(summary.id):
                break
            return CurrentReport(summary, is_over)
    return CurrentReport(summaries[0]) if summaries else None
