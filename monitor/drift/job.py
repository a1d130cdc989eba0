"""Jobs of drift reports, with the result `report.json`, and of baselines, with `baseline.json`."""

import msgspec
from msgspec.structs import replace

from quadriga.monitor.drift.baselines import Baseline, BaselineRequest, BaselineStore
from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.drift.samples import DriftError
from quadriga.monitor.drift.similarity import MAX_REFERENCES
from quadriga.monitor.drift.stored import BASELINE_ROWS, compare_stored, current_window_query
from quadriga.monitor.drift.watch.schedules import record_failure, record_window, with_history
from quadriga.monitor.drift.windows import read_window
from quadriga.monitor.model_files import team_folder
from quadriga.monitor.report.saved import save_report
from quadriga.monitor.report.schema import Window
from quadriga.quoting import quoted
from quadriga.store.jobs.runner import JobRun
from quadriga.store.query.filters.comparisons import parse_moment_us
from quadriga.store.records.errors import QueryError, StoreError

BASELINE_FILE = "baseline.json"


class BaselineJob(msgspec.Struct, frozen=True):
    """Parameters of a job that reads a baseline."""

    model: str
    request: BaselineRequest = msgspec.field(name="asked")


def run_drift(run: JobRun) -> str:
    """Compare a window with its baseline; the report has the id of the job.

    Raises:
        StoreError: There are no inferences to compare, or no baseline.
    """
    parameters = msgspec.convert(run.job.parameters, DriftParameters)
    is_scheduled = parameters.schedule is not None
    history_directory = team_folder(run.directory.parent.parent / "drift", run.job.team)
    try:
        baselines = _baselines(run)
        parameters = baselines.resolve_rolling(parameters)
        name = parameters.baseline
        baseline = baselines.read_summary(parameters.model, name) if isinstance(name, str) else None
        now_us = _submitted_us(run)
        report = compare_stored(
            run.inferences, parameters, baseline, run.report_reading, now_us=now_us
        )
    except (DriftError, StoreError) as error:
        if is_scheduled:
            record_failure(history_directory, run.job.id, parameters, str(error))
        raise StoreError(str(error)) from error
    report = replace(report, id=run.job.id)
    if is_scheduled:
        report = with_history(history_directory, report, parameters)
    file_name = save_report(run, report)
    if is_scheduled:
        record_window(history_directory, report, parameters, traceparent=run.traceparent)
    run.log(f"{report.data.current.n} images compared: {report.status}")
    return file_name


def run_baseline(run: JobRun) -> str:
    """Read the inferences of a baseline and save their summary.

    Raises:
        StoreError: There are no inferences to read.
    """
    job = msgspec.convert(run.job.parameters, BaselineJob)
    request = job.request
    parameters = DriftParameters(job.model, source_keys=request.source_keys)
    query = current_window_query(run.inferences, parameters, now_us=_submitted_us(run))
    query = replace(
        query, window=request.window, max_rows=BASELINE_ROWS, max_embeddings=MAX_REFERENCES
    )
    window = read_window(run.inferences, query, run.report_reading)
    n = window.info.window.n
    if not n:
        raise QueryError(f"the model {quoted(job.model, 80)} has no inferences in the baseline")
    run.report_progress(n, n)
    pending = Baseline(
        name=request.name,
        model=job.model,
        state="building",
        created=run.job.created_at,
        window=Window(request.start, request.end, filter=request.window.where),
        job=run.job.id,
    )
    saved = _baselines(run).save_ready(pending, window)
    run.log(
        "a newer baseline replaced this one"
        if saved is None
        else f"{saved.n} images are the baseline"
    )
    (run.directory / BASELINE_FILE).write_bytes(msgspec.json.encode(saved or pending))
    return BASELINE_FILE


def _baselines(run: JobRun) -> BaselineStore:
    """Return the baselines of the job's team in its data folder."""
    return BaselineStore(team_folder(run.directory.parent.parent / "baselines", run.job.team))


def _submitted_us(run: JobRun) -> int:
    """Return the time that `now` means in a job's filters: the same at each start of the job."""
    return parse_moment_us(run.job.created_at, 0)
