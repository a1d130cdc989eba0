"""Drift reports and baselines as jobs: the result is `report.json` with `report.html` beside it, or `baseline.json`."""

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.baselines import Baseline, BaselineRequest, Baselines
from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.samples import DriftError
from quadriga.monitor.drift.similarity import MOST
from quadriga.monitor.drift.stored import BASELINE_ROWS, compare_stored, reading
from quadriga.monitor.drift.watch.history import note, note_failure, with_history
from quadriga.monitor.drift.windows import read_window
from quadriga.monitor.executors import Here
from quadriga.monitor.report.saved import keep
from quadriga.monitor.report.schema import Window
from quadriga.store.errors import QueryError, StoreError
from quadriga.store.jobs import Run
from quadriga.store.query.moments import microseconds

BASELINE = "baseline.json"


class BaselineJob(msgspec.Struct, frozen=True):
    """What the job of a baseline reads."""

    model: str
    asked: BaselineRequest


def run_drift(run: Run) -> str:
    """Compare a window as a job; the id of the report is the job's.

    Raises:
        StoreError: There is nothing to compare, or nothing to compare it with.
    """
    parameters = msgspec.convert(run.job.parameters, DriftParameters)
    is_scheduled = parameters.schedule is not None
    windows = run.directory.parent.parent / "drift"
    try:
        baselines = _baselines(run)
        parameters = baselines.resolved(parameters)
        named = parameters.baseline
        baseline = baselines.read(parameters.model, named) if isinstance(named, str) else None
        now_us = _submitted_us(run)
        report = compare_stored(run.inferences, parameters, baseline, run.tell, now_us=now_us)
    except (DriftError, StoreError) as error:
        if is_scheduled:
            note_failure(windows, run.job.id, parameters, str(error))
        raise StoreError(str(error)) from error
    report = replace(report, id=run.job.id)
    if is_scheduled:
        report = with_history(windows, report, parameters)
    name = keep(run, report)
    if is_scheduled:
        note(windows, report, parameters)
    run.log(f"{report.data.current.n} images compared: {report.status}")
    return name


def run_baseline(run: Run) -> str:
    """Read a baseline as a job.

    Raises:
        StoreError: There is nothing to read.
    """
    job = msgspec.convert(run.job.parameters, BaselineJob)
    asked = job.asked
    window = asked.window
    parameters = DriftParameters(job.model, source_keys=asked.source_keys)
    wanted = reading(run.inferences, parameters, now_us=_submitted_us(run))
    wanted = replace(wanted, window=window, rows=BASELINE_ROWS, embeddings=MOST)
    found = read_window(run.inferences, wanted, run.tell, Here(run.inferences))
    n = found.about.window.n
    if not n:
        raise QueryError(f"expected inferences of {job.model!r:.80} in the baseline, got none")
    run.tell(n, n)
    told = Window(asked.start, asked.end, filter=window.where)
    created, job_id = run.job.created_at, run.job.id
    baseline = Baseline(asked.name, job.model, "building", created, window=told, job=job_id)
    kept = _baselines(run).finish(baseline, found)
    run.log("a newer one took its place" if kept is None else f"{kept.n} images are the baseline")
    (run.directory / BASELINE).write_bytes(msgspec.json.encode(kept or baseline))
    return BASELINE


def _baselines(run: Run) -> Baselines:
    """Return the baselines of the data folder that a job is in."""
    return Baselines(run.directory.parent.parent / "baselines")


def _submitted_us(run: Run) -> int:
    """Return what `now` means in a job's filters, the same each time it is begun."""
    return microseconds(run.job.created_at, 0)
