"""What a model missed or got wrong, as filters: the cells of the newest evaluations, for who types these words."""

from collections.abc import Iterator, Mapping

import msgspec

from quadriga.engine.console.filter_line import choice_text, comparison_text, joined
from quadriga.engine.console.filter_problems import OUTCOME_NAMES
from quadriga.engine.console.formats import day
from quadriga.engine.console.texts import text
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Confusion, ReportedModel
from quadriga.store.records.errors import StoreError

MAX_EVALUATIONS = 3
"""Models whose newest evaluations are looked at."""

_MAX_CELLS = 50
"""Labels of a filter; a matrix in which more of them were taken for others has none."""


class Outcome(msgspec.Struct, frozen=True):
    """A filter that finds the images of some cells of a report."""

    line: str
    words: str


class _Evaluation(msgspec.Struct, frozen=True):
    """The fields of a report that say which cells it has."""

    model: ReportedModel
    created: str
    confusion: Confusion | None = None


def read_outcomes(reports: ReportStore) -> dict[str, list[Outcome]]:
    """Return the filters that each word of `OUTCOME_NAMES` stands for, those of the newest evaluation first."""
    outcomes: dict[str, list[Outcome]] = {name: [] for names in OUTCOME_NAMES.values() for name in names}  # fmt: skip
    for report_id, evaluation in _newest(reports):
        lines = outcome_lines(report_id, evaluation.confusion or Confusion())
        words = {
            "model": f"{evaluation.model.name} {evaluation.model.version}",
            "day": day(evaluation.created),
        }
        for kind, line in lines.items():
            for name in OUTCOME_NAMES[kind]:
                outcomes[name].append(Outcome(line, text(f"phrase_{kind}", **words)))
    return outcomes


def outcome_lines(report_id: str, confusion: Confusion) -> dict[str, str]:
    """Return the filters of what a report says was missed, and of all that was wrong, as far as there is some."""
    report = comparison_text("report", report_id)
    missed = [joined([report, comparison_text("predicted", "")])] if any(confusion.misses.values()) else []  # fmt: skip
    false = [joined([report, comparison_text("truth", "")])] if any(confusion.hallucinations.values()) else []  # fmt: skip
    taken = [
        joined([report, comparison_text("truth", label), choice_text("predicted", others)])
        for label, others in _taken_for_others(confusion)
    ]
    wrong = [*missed, *false, *taken] if len(taken) <= _MAX_CELLS else []
    alternatives = {"missed": missed, "wrong": wrong}
    return {
        kind: parts[0] if len(parts) == 1 else " | ".join(f"({part})" for part in parts)
        for kind, parts in alternatives.items()
        if parts
    }


def _taken_for_others(confusion: Confusion) -> Iterator[tuple[str, list[str]]]:
    """Yield each label with those that it was taken for."""
    for place, (label, row) in enumerate(zip(confusion.labels, confusion.matrix, strict=False)):
        others = [
            other
            for column, (other, count) in enumerate(zip(confusion.labels, row, strict=False))
            if count and column != place
        ]
        if others:
            yield label, others


def _newest(reports: ReportStore) -> Iterator[tuple[str, _Evaluation]]:
    """Yield the id and the content of the newest evaluation of each model; damaged ones are left out."""
    newest: Mapping[str, str] = {
        summary.model.name: summary.id
        for summary in reversed(reports.all())
        if summary.kind == "evaluation"
    }
    for report_id in sorted(newest.values(), reverse=True)[:MAX_EVALUATIONS]:
        try:
            yield report_id, reports.decode(report_id, _Evaluation)
        except StoreError:
            continue
