"""A report as one self-contained HTML file: for people to read, print and pass on.

The module loads jinja2: import it only where a page is rendered.
"""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, StrictUndefined

from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.charts import drift, evaluation, history
from quadriga.monitor.report.gallery import (
    ImageBytes,
    ImageCard,
    changed_cards,
    unlike_cards,
    worst_cards,
)
from quadriga.monitor.report.schema import (
    Confusion,
    Metric,
    Report,
    Signal,
    Window,
    sorted_by_effect,
)
from quadriga.quoting import one_line, printable

_MAX_CONFUSIONS = 20
_MAX_MOVED = 40
_MAX_CHANGES = 40
_FIRST_CARDS = 4
"""Number of the worst images that stand beside the numbers."""


def render_page(report: Report, image_bytes: ImageBytes) -> str:
    """Render a report of any kind and task as an HTML page; sections without content are omitted.

    `image_bytes` returns the file of an image by its hash or path, as in `Worst.image`; None if it is not stored.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # The template calls their functions by name.
    environment.filters.update(vars(metric_texts) | vars(drift_texts))
    template = environment.from_string(
        files("quadriga.monitor").joinpath("page.html.jinja").read_text("utf-8")
    )
    cards = worst_cards(report, image_bytes)
    html = template.render(
        report=report,
        first_cards=cards[:_FIRST_CARDS],
        cards=cards[_FIRST_CARDS:],
        **_overview(report),
        **_metrics(report),
        **_drift(report, image_bytes),
        **_drawn_charts(report),
    )
    return printable(html)


def _overview(report: Report) -> dict[str, Any]:
    """Return what the page says of a report of any kind."""
    is_quiet = report.kind == "drift" and report.status != "error"
    return {
        "name": one_line(_name(report), 100),
        "headline": drift_texts.headline(report) or metric_texts.headline(report),
        "explanation": drift_texts.explanation(report) or " ".join(metric_texts.findings(report)),
        "task": report.task.replace("_", " ").lower(),
        "status": "" if is_quiet else drift_texts.verdict(report),
        "caveats": drift_texts.caveats(report),
        "facts": _facts(report),
        "parameters": [
            (key.replace("_", " "), value if isinstance(value, str) else _json(value))
            for key, value in report.parameters.items()
            if key != "missing"  # it is among the notes
        ],
        "excluded": metric_texts.excluded_text(report.data.excluded),
    }


def _metrics(report: Report) -> dict[str, Any]:
    """Return the tables of metrics."""
    estimates = drift_texts.estimated_metrics(report.metrics)
    metrics = [metric for metric in report.metrics if metric not in estimates]
    columns, rows = _label_table(metrics)
    return {
        "headlines": metric_texts.table_metrics(report),
        "counts": metric_texts.counts_by_label(report),
        "headline_notes": metric_texts.headline_notes(report),
        "estimates": estimates,
        "metrics": [
            metric for metric in metrics if not isinstance(metric.parameters.get("label"), str)
        ],
        "label_columns": columns,
        "label_rows": rows,
        "taken": _frequent_confusions(report.confusion),
    }


def _drift(report: Report, image_bytes: ImageBytes) -> dict[str, Any]:
    """Return the sections of a comparison; an evaluation has slices of its own instead."""
    is_drift = report.kind == "drift"
    return {
        "changes": _changes(report, image_bytes) if is_drift else [],
        "signals": sorted_by_effect(report.signals),
        "signal_titles": drift_texts.signal_titles(
            (signal.name for signal in report.signals), report
        ),
        "effects": _effect_descriptions(report),
        "moved": drift_texts.moved_signals(report.slices) if is_drift else [],
        "most_moved": _MAX_MOVED,
        "slices": [] if is_drift else report.slices,
        "unlike": unlike_cards(report, image_bytes),
    }


def _drawn_charts(report: Report) -> dict[str, Any]:
    is_evaluation = report.kind == "evaluation"
    return {
        "charts": [*evaluation.evaluation_charts(report)]
        if is_evaluation
        else drift.signal_charts(report),
        "quiet_charts": drift.quiet_charts(report),
        "windows": history.comparable_windows(report),
        "over_time": history.effect_charts(report),
        "heat_map": history.p_value_chart(report),
        "compared": [
            (comparison, evaluation.difference_chart(comparison))
            for comparison in report.comparisons
        ],
    }


def _changes(
    report: Report, image_bytes: ImageBytes
) -> list[tuple[drift_texts.Change, Signal, tuple[list[ImageCard], list[ImageCard]]]]:
    """Return the signals that are shown in full: their texts, and their images of the window and of the baseline."""
    listed = drift_texts.signals_in_full(report)[:_MAX_CHANGES]
    shown = [drift_texts.describe_change(signal, report) for signal in listed]
    signals = {signal.name: signal for signal in report.signals}
    cards = changed_cards(report, image_bytes)
    return [
        (change, signals[change.signal], cards.get(change.signal, ([], []))) for change in shown
    ]


def _name(report: Report) -> str:
    """Name the subject of a report: a model, or two files."""
    file_names = [report.parameters.get(side) for side in ("current", "baseline")]
    if all(isinstance(file_name, str) for file_name in file_names):
        return " against ".join(str(file_name).rpartition("/")[2] for file_name in file_names)
    return f"{report.model.name} {report.model.version}".strip() or "A model"


def _effect_descriptions(report: Report) -> list[tuple[str, str]]:
    """Describe the effects that occur, by the kinds of signals that have them."""
    kinds: dict[str, list[str]] = {}
    for signal in report.signals:
        signal_kinds = kinds.setdefault(
            drift_texts.EFFECT_DESCRIPTIONS.get(signal.effect.name, signal.effect.name), []
        )
        signal_kinds.extend([] if signal.kind in signal_kinds else [signal.kind])
    return [(" and ".join(signal_kinds), words) for words, signal_kinds in kinds.items()]


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Describe the data of a report as terms and texts."""
    window, baseline = report.data.current, report.data.baseline
    yield "Images" if baseline is None else "Current", f"{window.n:,}"
    yield from _span(window, "From", "To")
    if window.filter is not None:
        yield "Filter", _json(window.filter)
    if baseline is not None:
        yield "Baseline", f"{baseline.n:,}"
        yield from _span(baseline, "Baseline from", "Baseline to")
    parameters = report.parameters
    file_names = [
        parameters[key] for key in ("records", "truth", "predictions") if key in parameters
    ]
    if file_names:
        yield "Files", ", ".join(file_names)
    if report.model.sha256:
        yield "SHA-256", report.model.sha256
    if "baseline_sha256" in report.parameters:
        yield "SHA-256 of the baseline's model", str(report.parameters["baseline_sha256"])
    yield "Report", f"{report.id}, {report.created}".strip(", ")


def _span(window: Window, *names: str) -> Iterator[tuple[str, str]]:
    if window.start is not None or window.end is not None:
        yield from zip(
            names,
            (time or metric_texts.UNDEFINED for time in (window.start, window.end)),
            strict=True,
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _label_table(metrics: list[Metric]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Arrange the metrics of labels as a table: a row for each label, a column for each metric."""
    columns: dict[str, None] = {}
    rows: dict[str, dict[str, str]] = {}
    for metric in metrics:
        label = metric.parameters.get("label")
        if isinstance(label, str):
            column = metric_texts.title(metric, of_label=False)
            columns[column] = None
            rows.setdefault(label, {})[column] = metric_texts.format_number(metric.value)
    label_rows = [
        (label, [row.get(column, "") for column in columns]) for label, row in rows.items()
    ]
    return list(columns), label_rows


def _frequent_confusions(matrix: Confusion | None) -> list[tuple[str, str, int, list[str]]]:
    """Return the most frequent confusions: true label, predicted label, count, ids of example inferences."""
    if matrix is None or not matrix.labels:
        return []
    counts = evaluation.with_background(matrix)
    names: list[str | None] = [*matrix.labels, None]
    examples: dict[tuple[str | None, str | None], list[str]] = {}
    for example in matrix.examples:
        examples.setdefault((example.truth, example.predicted), []).append(example.inference_id)
    np.fill_diagonal(counts, 0)
    cells = sorted(np.argwhere(counts).tolist(), key=lambda cell: -counts[*cell])
    rows = []
    for row, column in cells[:_MAX_CONFUSIONS]:
        pair = names[row], names[column]
        truth, predicted = (
            f"({evaluation.BACKGROUND_NAME})" if label is None else label for label in pair
        )
        inference_ids = list(dict.fromkeys(examples.get(pair, [])))[:3]
        rows.append((truth, predicted, int(counts[row, column]), inference_ids))
    return rows
