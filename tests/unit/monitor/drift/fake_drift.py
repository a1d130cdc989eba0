"""A drift job that finds an alarm in every window, without a store."""

import msgspec

from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.watch.schedules import record_window, with_history
from quadriga.monitor.report.saved import REPORT_FILE
from quadriga.store.jobs.runner import JobRun
from tests.unit.monitor.drift.window_reports import report


def run_drift(run: JobRun) -> str:
    """Record a window as a real drift job does."""
    parameters = msgspec.convert(run.job.parameters, DriftParameters)
    directory = run.directory.parent.parent / "drift"
    drift_report = msgspec.structs.replace(report(0, alarms="a"), id=run.job.id)
    drift_report = with_history(directory, drift_report, parameters)
    (run.directory / REPORT_FILE).write_bytes(msgspec.json.encode(drift_report))
    record_window(directory, drift_report, parameters)
    return REPORT_FILE
