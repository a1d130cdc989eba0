"""A drift job that finds an alarm in every window, without a store."""

import msgspec

from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.watch.history import record_window, with_history
from quadriga.monitor.report.saved import REPORT_FILE
from quadriga.store.jobs import JobRun
from tests.unit.monitor.drift.window_reports import report


def run_drift(run: JobRun) -> str:
    """Note a window as a real one does."""
    asked = msgspec.convert(run.job.parameters, DriftParameters)
    directory = run.directory.parent.parent / "drift"
    made = msgspec.structs.replace(report(0, alarms="a"), id=run.job.id)
    made = with_history(directory, made, asked)
    (run.directory / REPORT_FILE).write_bytes(msgspec.json.encode(made))
    record_window(directory, made, asked)
    return REPORT_FILE
