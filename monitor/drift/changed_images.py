"""Choice of the images that show what changed in a signal, and how it used to be."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from quadriga.monitor.drift.samples import EMBEDDING, Column
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.report.schema import Signal
from quadriga.tasks.arrays import Float64Array, Int64Array

MAX_SIGNALS = 16
"""Maximum number of signals with images."""

CANDIDATES = 12
"""Number of candidates on each side, of which those whose image is another candidate's are dropped."""

_QUANTILES = np.linspace(0.95, 0.5, CANDIDATES)
"""Places of the chosen images among those of the window, from the end towards which the signal moved."""


class Candidate(NamedTuple):
    """An inference whose image may be shown."""

    inference_id: int
    value: float | str


class Candidates(NamedTuple):
    """Inferences whose images may be shown for a signal, the clearest first."""

    signal: str
    current: list[Candidate]
    baseline: list[Candidate]


def choose_images(
    baseline: Summary, current: Summary, alarms: Sequence[Signal]
) -> list[Candidates]:
    """Choose inferences whose images show how signals with an alarm changed.

    Of numbers they are spread from the end towards which the signal moved to its middle, beside those in the middle of
    the baseline; of labels they have the label that became most frequent, beside the one that became rarest. For
    embeddings no candidates are listed: the images least like the baseline show it.

    Args:
        baseline: Baseline; the order of its rows are ids of inferences.
        current: Current window, likewise.
        alarms: Signals with an alarm; the first `MAX_SIGNALS` are taken.
    """
    candidates = []
    for signal in alarms[:MAX_SIGNALS]:
        columns = baseline.sample.column(signal.name), current.sample.column(signal.name)
        if columns[0] is None or columns[1] is None:
            continue
        if signal.kind == EMBEDDING:
            candidates.append(Candidates(signal.name, [], []))
            continue
        choose = _choose_labelled if signal.kind == "categorical" else _choose_numbers
        rows = choose(signal, columns[0], columns[1])
        current_ids, baseline_ids = (
            _candidates(side, column, positions)
            for side, column, positions in zip(
                (current, baseline), (columns[1], columns[0]), rows, strict=True
            )
        )
        candidates.append(Candidates(signal.name, current_ids, baseline_ids))
    return candidates


def _choose_numbers(
    signal: Signal, baseline: Column, current: Column
) -> tuple[Int64Array, Int64Array]:
    """Return positions in the values of the current window, and of the baseline."""
    rises = signal.before is None or signal.after is None or signal.after.mean >= signal.before.mean
    quantiles = _QUANTILES if rises else 1 - _QUANTILES
    wanted = np.quantile(current.values, quantiles)
    usual = np.quantile(baseline.values, np.linspace(0.4, 0.6, CANDIDATES))
    return _nearest(current.values, wanted), _nearest(baseline.values, usual)


def _nearest(values: Float64Array, wanted: Float64Array) -> Int64Array:
    """Return the positions of the values (N,) nearest to each of the wanted ones, without repetition."""
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(values[order], wanted).clip(0, len(values) - 1)
    return np.array(list(dict.fromkeys(order[places].tolist())), np.int64)


def _choose_labelled(
    signal: Signal, baseline: Column, current: Column
) -> tuple[Int64Array, Int64Array]:
    """Return positions of values with the label that gained most, and with the one that lost most."""
    counts = np.array([signal.histogram.baseline, signal.histogram.current], np.float64)
    gains = np.diff(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), axis=0)[0]
    labels = [str(label) for label in signal.histogram.edges]
    return (
        _with_label(current, labels[int(gains.argmax())]),
        _with_label(baseline, labels[int(gains.argmin())]),
    )


def _with_label(column: Column, label: str) -> Int64Array:
    """Return positions of values with a label, spread over time."""
    if label not in column.labels:
        return np.zeros(0, np.int64)
    positions = np.flatnonzero(column.values == column.labels.index(label))
    spread = np.linspace(0, len(positions) - 1, min(CANDIDATES, len(positions))).round()
    return positions[spread.astype(np.int64)]


def _candidates(side: Summary, column: Column, positions: Int64Array) -> list[Candidate]:
    ids = side.sample.order[column.rows[positions]].tolist()
    values = column.values[positions].tolist()
    if column.kind == "categorical":
        values = [column.labels[code] for code in values]
    return [Candidate(id_, value) for id_, value in zip(ids, values, strict=True)]
