"""Drift reports and baselines as jobs: the result is `report.json` with `report.html` beside it, or `baseline.json`."""

import msgspec

from monitor.drift.baselines import Baseline, BaselineRequest, Baselines
from monitor.drift.parameters import DriftParameters
from monitor.drift.samples import DriftError
from monitor.drift.similarity import MOST
from monitor.drift.stored import BASELINE_ROWS, compare_stored, reading
from monitor.drift.windows import read_window
from monitor.places import Here
from monitor.report import Report, Window
from monitor.reports import keep
from monitor.watch.history import note, note_failure, with_history
from store.errors import QueryError, StoreError
from store.jobs import Run
from store.query.moments import microseconds

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
    drift_directory = run.directory.parent.parent / "drift"
    is_scheduled = parameters.schedule is not None
    try:
        parameters, report = _report(run, parameters)
    except (DriftError, StoreError) as error:
        if is_scheduled:
            note_failure(drift_directory, run.job.id, parameters, str(error))
        raise StoreError(str(error)) from error
    if is_scheduled:
        report = with_history(drift_directory, report, parameters)
    name = keep(run, report)
    if is_scheduled:
        note(drift_directory, report, parameters)
    run.log(f"{report.data.current.n} images compared: {report.status}")
    return name


def _report(run: Run, parameters: DriftParameters) -> tuple[DriftParameters, Report]:
    baselines = baselines_beside(run)
    parameters = baselines.resolved(parameters)
    named = parameters.baseline
    report = compare_stored(
        run.inferences,
        parameters,
        baselines.read(parameters.model, named) if isinstance(named, str) else None,
        run.tell,
        now_us=_submitted_us(run),
    )
    return parameters, msgspec.structs.replace(report, id=run.job.id)


def run_baseline(run: Run) -> str:
    """Read a baseline as a job.

    Raises:
        StoreError: There is nothing to read.
    """
    job = msgspec.convert(run.job.parameters, BaselineJob)
    asked = job.asked
    parameters = DriftParameters(job.model, source_keys=asked.source_keys)
    wanted = msgspec.structs.replace(
        reading(run.inferences, parameters, now_us=_submitted_us(run)),
        window=asked.window,
        rows=BASELINE_ROWS,
        embeddings=MOST,
    )
    found = read_window(run.inferences, wanted, run.tell, Here(run.inferences))
    if not found.about.window.n:
        raise QueryError(f"expected inferences of {job.model!r:.80} in the baseline, got none")
    run.tell(found.about.window.n, found.about.window.n)
    window = Window(asked.start, asked.end, filter=asked.window.where)
    baseline = Baseline(
        asked.name, job.model, "building", run.job.created_at, window=window, job=run.job.id
    )
    kept = baselines_beside(run).finish(baseline, found)
    run.log("a newer one took its place" if kept is None else f"{kept.n} images are the baseline")
    (run.directory / BASELINE).write_bytes(msgspec.json.encode(kept or baseline))
    return BASELINE


def baselines_beside(run: Run) -> Baselines:
    """Return the baselines of the data folder that a job is in."""
    return Baselines(run.directory.parent.parent / "baselines")


def _submitted_us(run: Run) -> int:
    """Return what `now` means in a job's filters, the same each time it is begun."""
    return microseconds(run.job.created_at, 0)
