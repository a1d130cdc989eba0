"""A report as one HTML file that needs nothing else: for people to read, print and pass on.

Loads jinja2 and matplotlib: import it where a page is made.
"""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, StrictUndefined

from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.charts import bars, calibration, confusion, curves, drift, history
from quadriga.monitor.report.charts.drawing import Chart, drawing_style
from quadriga.monitor.report.gallery import ImageBytes, unlike_cards, worst_cards
from quadriga.monitor.report.schema import Confusion, Metric, Report, Window, sorted_by_effect

_MOST_CONFUSIONS = 20
_FEW_IMAGES = 30
_MOST_MOVED = 40


def render_page(report: Report, image_bytes: ImageBytes) -> str:
    """Write a report of any kind and task as an HTML page; what it lacks is left out.

    `image_bytes` returns the file of an image by its hash or place, as `Worst.image` has it; None where it
    is not kept.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # The template calls their functions by name.
    environment.filters.update(vars(metric_texts) | vars(drift_texts))
    template = environment.from_string(
        files("quadriga.monitor").joinpath("page.html.jinja").read_text("utf-8")
    )
    with drawing_style():
        compared = [
            (one, bars.difference_chart(one, at)) for at, one in enumerate(report.comparisons)
        ]
        charts = list(_charts(report))
        over_time, heat_map = history.effect_charts(report), history.p_value_chart(report)
    estimates = drift_texts.estimated_metrics(report.metrics)
    other = [one for one in report.metrics if one not in estimates]
    columns, rows = _by_label(other)
    is_drift = report.kind == "drift"
    written = template.render(
        report=report,
        name=metric_texts.one_line(_name(report), 100),
        task=report.task.replace("_", " ").lower(),
        status=drift_texts.verdict(report),
        facts=_facts(report),
        parameters=[
            (key.replace("_", " "), value if isinstance(value, str) else _json(value))
            for key, value in report.parameters.items()
        ],
        excluded=metric_texts.excluded_text(report.data.excluded),
        headlines=metric_texts.headlines(report),
        is_small=0 < report.data.current.n < _FEW_IMAGES,
        metrics=[one for one in other if not isinstance(one.parameters.get("label"), str)],
        label_columns=columns,
        label_rows=rows,
        signals=sorted_by_effect(report.signals),
        effects=_effects(report),
        moved=drift_texts.moved_signals(report.slices) if is_drift else [],
        most_moved=_MOST_MOVED,
        slices=[] if is_drift else report.slices,
        estimates=estimates,
        windows=history.comparable_windows(report),
        over_time=over_time,
        heat_map=heat_map,
        unlike=unlike_cards(report, image_bytes),
        most_pictured=drift.MAX_SIGNALS,
        compared=compared,
        charts=charts,
        taken=_taken(report.confusion),
        cards=worst_cards(report, image_bytes),
    )
    return metric_texts.printable(written)


def _name(report: Report) -> str:
    """Name what a report is about: a model, or two files."""
    files = [report.parameters.get(side) for side in ("current", "baseline")]
    if all(isinstance(one, str) for one in files):
        return " against ".join(str(one).rpartition("/")[2] for one in files)
    return f"{report.model.name} {report.model.version}".strip() or "A model"


def _effects(report: Report) -> list[tuple[str, str]]:
    """Say what the effects are that occur, by the kinds of signals that have them."""
    kinds: dict[str, list[str]] = {}
    for one in report.signals:
        of = kinds.setdefault(
            drift_texts.EFFECT_DESCRIPTIONS.get(one.effect.name, one.effect.name), []
        )
        of.extend([] if one.kind in of else [one.kind])
    return [(" and ".join(of), words) for words, of in kinds.items()]


def _charts(report: Report) -> Iterator[Chart]:
    """Draw what the report has numbers for."""
    for found in (
        curves.precision_recall_chart(report),
        curves.roc_chart(report),
        confusion.object_confusion_chart(report),
        confusion.pixel_confusion_chart(report),
        bars.tide_chart(report),
        bars.size_chart(report),
        calibration.reliability_chart(report),
        calibration.score_chart(report),
    ):
        if found is not None:
            yield found
    yield from drift.signal_charts(report)
    yield from [] if report.kind == "drift" else bars.slice_charts(report)
    yield from bars.label_charts(report)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Say what was looked at."""
    window, before = report.data.current, report.data.baseline
    yield "Images" if before is None else "Current", f"{window.n:,}"
    yield from _span(window, "From", "To")
    if window.filter is not None:
        yield "Filter", _json(window.filter)
    if before is not None:
        yield "Baseline", f"{before.n:,}"
        yield from _span(before, "Baseline from", "Baseline to")
    given = report.parameters
    files = [given[key] for key in ("records", "truth", "predictions") if key in given]
    if files:
        yield "Files", ", ".join(files)
    if report.model.sha256:
        yield "SHA-256", report.model.sha256
    if "baseline_sha256" in report.parameters:
        yield "SHA-256 of the baseline's model", str(report.parameters["baseline_sha256"])
    yield "Report", f"{report.id}, {report.created}".strip(", ")


def _span(window: Window, *names: str) -> Iterator[tuple[str, str]]:
    if window.start is not None or window.end is not None:
        yield from zip(
            names,
            (end or metric_texts.UNDEFINED for end in (window.start, window.end)),
            strict=True,
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _by_label(metrics: list[Metric]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Arrange the numbers of labels: a row for each label, a column for each kind."""
    columns: dict[str, None] = {}
    rows: dict[str, dict[str, str]] = {}
    for one in metrics:
        label = one.parameters.get("label")
        if isinstance(label, str):
            column = metric_texts.title(one, of_label=False)
            columns[column] = None
            rows.setdefault(label, {})[column] = metric_texts.format_number(one.value)
    filled = [(label, [row.get(column, "") for column in columns]) for label, row in rows.items()]
    return list(columns), filled


def _taken(found: Confusion | None) -> list[tuple[str, str, int, list[str]]]:
    """Return what is most often taken for what else, how often, and inferences to look at."""
    if found is None or not found.labels:
        return []
    counts = confusion.with_background(found)
    names: list[str | None] = [*found.labels, None]
    examples: dict[tuple[str | None, str | None], list[str]] = {}
    for one in found.examples:
        examples.setdefault((one.truth, one.predicted), []).append(one.inference_id)
    np.fill_diagonal(counts, 0)
    cells = sorted(np.argwhere(counts).tolist(), key=lambda cell: -counts[*cell])
    taken = []
    for row, column in cells[:_MOST_CONFUSIONS]:
        pair = names[row], names[column]
        truth, predicted = (
            f"({confusion.BACKGROUND_NAME})" if one is None else one for one in pair
        )
        seen = list(dict.fromkeys(examples.get(pair, [])))[:3]
        taken.append((truth, predicted, int(counts[row, column]), seen))
    return taken
