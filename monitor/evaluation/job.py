"""Evaluation as a job: its result is `report.json`, and `report.html` beside it."""

import shutil

import msgspec

from quadriga.monitor.evaluation.parameters import EvaluationParameters
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.evaluation.stored import evaluate_stored
from quadriga.monitor.report.saved import keep
from quadriga.store.errors import StoreError
from quadriga.store.jobs import Run


def run_evaluation(run: Run) -> str:
    """Do an evaluation as a job; the id of the report is the job's.

    Raises:
        StoreError: There is nothing to evaluate, or it is not of one task.
    """
    parameters = msgspec.convert(run.job.parameters, EvaluationParameters)
    shards = run.directory / "shards"
    if shards.is_dir():
        run.log("it goes on with what was read before")
    is_read = False

    def tell(done: int, total: int | None) -> None:
        nonlocal is_read
        if done == total and not is_read:
            is_read = True
            run.log(f"{total} answers read; now the numbers are computed")
        run.tell(done, total)

    try:
        report = evaluate_stored(run.inferences, parameters, tell, shards)
    except EvaluationError as error:
        raise StoreError(str(error)) from error
    report = msgspec.structs.replace(report, id=run.job.id)
    name = keep(run, report)
    shutil.rmtree(shards)
    run.log(f"{report.data.current.n} images evaluated")
    return name
