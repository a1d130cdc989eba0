"""The job that evaluates stored inferences; its result is `report.json`, with the page `report.html`."""

import shutil
from functools import partial

import msgspec

from quadriga.monitor.evaluation.parameters import EvaluationParameters
from quadriga.monitor.evaluation.schedules import record_failure, record_window
from quadriga.monitor.evaluation.stored import evaluate_stored
from quadriga.monitor.model_files import team_folder
from quadriga.monitor.report.cells import save_cells
from quadriga.monitor.report.saved import save_report
from quadriga.store.jobs.runner import JobRun
from quadriga.store.records.errors import StoreError


def run_evaluation(run: JobRun) -> str:
    """Evaluate stored inferences; the report has the id of the job.

    Raises:
        StoreError: No inferences match, or they are of several tasks.
    """
    parameters = msgspec.convert(run.job.parameters, EvaluationParameters)
    shards = run.directory / "shards"
    if shards.is_dir():
        run.log("continuing with the shards that were read before")
    is_read = False

    def report_progress(done: int, total: int | None) -> None:
        nonlocal is_read
        if done == total and not is_read:
            is_read = True
            run.log(f"{total} inferences read; computing metrics")
        run.report_reading(done, total)

    history_directory = team_folder(run.directory.parent.parent / "evaluation", run.job.team)
    try:
        report = evaluate_stored(
            run.inferences,
            parameters,
            report_progress,
            shards_directory=shards,
            on_cells=partial(save_cells, run.directory),
        )
    except StoreError as error:
        if parameters.schedule is not None:
            record_failure(history_directory, run.job, error)
        raise StoreError(str(error)) from error
    report = msgspec.structs.replace(report, id=run.job.id)
    file_name = save_report(run, report)
    shutil.rmtree(shards)
    if parameters.schedule is not None:
        record_window(history_directory, report, parameters.model, parameters.schedule)
    run.log(f"{report.data.current.n} images evaluated")
    return file_name
