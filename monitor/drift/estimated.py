"""Estimated accuracy of stored inferences: the baseline's truth, and the scores of both sides."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from monitor.drift.estimates import LEAST, estimates
from monitor.evaluation.reading import read
from monitor.report import Metric
from store.database import run_in
from store.inferences import Inferences
from store.records import StoredInference

TASK = "IMAGE_CLASSIFICATION"
MOST_READ = 5_000
"""Inferences of a side whose scores are read; of more, as many are drawn."""

Ids = npt.NDArray[np.int64]
_KNOWN = "SELECT seq FROM ground_truth WHERE seq IN ({})"


class _Said(msgspec.Struct):
    label: str = ""
    score: float = 0.0


class _Answer(NamedTuple):
    scores: list[float]
    """Largest first."""
    label: str
    """Of the largest."""
    truth: str | None
    """None where it is not known, or there are several."""


_decoder = msgspec.json.Decoder(list[_Said])


def estimated(inferences: Inferences, task: str, baseline: Ids, current: Ids) -> list[Metric]:
    """Estimate how many answers of a window are right; nothing where the baseline has too little truth.

    Args:
        inferences: The store.
        task: Of the model; only single labels are estimated.
        baseline: (N,) ids.
        current: (M,) ids.

    Raises:
        StoreError: The database does not answer.
    """
    if task != TASK:
        return []
    with inferences.snapshot() as connection:
        rows: Iterable[Any] = run_in(connection, _KNOWN, baseline.tolist())
        known = sorted(int(seq) for (seq,) in rows)
    if len(known) < LEAST:
        return []
    before = [one for one in _answers(inferences, known) if one.truth is not None]
    now = _answers(inferences, current.tolist())
    correct = [one.label == one.truth for one in before]
    lengths = {len(one.scores) for one in (*before, *now)}
    sums = np.array([sum(one.scores) for one in (*before, *now)])
    if len(lengths) == 1 and (np.abs(sums - 1) < 0.02).all():  # all labels, as probabilities
        return estimates(_whole(before, lengths), correct, _whole(now, lengths))
    return estimates([one.scores[0] for one in before], correct, [one.scores[0] for one in now])


def _whole(answers: list[_Answer], lengths: set[int]) -> npt.NDArray[np.float64]:
    return np.array([one.scores for one in answers], np.float64).reshape(len(answers), max(lengths))


def _answers(inferences: Inferences, ids: Sequence[int]) -> list[_Answer]:
    """Read answers; those without a label are passed over."""
    chosen = np.linspace(0, len(ids) - 1, min(len(ids), MOST_READ)).astype(np.int64)
    found = (_answer(one) for one in read(inferences, [ids[at] for at in chosen.tolist()]))
    return [one for one in found if one is not None]


def _answer(record: StoredInference) -> _Answer | None:
    try:
        said = sorted(_decoder.decode(record.predictions), key=lambda one: -one.score)
        truth = [] if record.ground_truth is None else _decoder.decode(record.ground_truth)
    except msgspec.MsgspecError:  # a failure, or imported in another form
        return None
    if not said:
        return None
    single = truth[0].label if len(truth) == 1 else None
    return _Answer([one.score for one in said], said[0].label, single)
