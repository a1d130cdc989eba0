"""A report as one self-contained HTML file: for people to read, print and pass on.

The module loads jinja2: import it only where a page is rendered.
"""

from importlib.resources import files
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, StrictUndefined

from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.charts import drift, evaluation, history
from quadriga.monitor.report.gallery import ImageBytes, changed_cards, unlike_cards, worst_cards
from quadriga.monitor.report.schema import Confusion, Report, sorted_by_effect
from quadriga.quoting import one_line, printable

_MAX_CONFUSIONS = 20


def render_page(report: Report, image_bytes: ImageBytes) -> str:
    """Render a report of any kind and task as an HTML page; sections without content are omitted.

    `image_bytes` returns the file of an image by its hash or path, as in `Worst.image`; None if it is not stored.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # The template calls their functions by name.
    environment.filters.update(vars(metric_texts) | vars(drift_texts) | {"json": _json})
    template = environment.from_string(
        files("quadriga.monitor").joinpath("page.html.jinja").read_text("utf-8")
    )
    is_drift = report.kind == "drift"
    estimates = drift_texts.estimated_metrics(report.metrics)
    html = template.render(
        report=report,
        metric_texts=metric_texts,
        drift_texts=drift_texts,
        name=one_line(_name(report), 100),
        cards=worst_cards(report, image_bytes),
        changed_cards=changed_cards(report, image_bytes),
        unlike=unlike_cards(report, image_bytes),
        signals=sorted_by_effect(report.signals),
        estimates=estimates,
        metrics=[metric for metric in report.metrics if metric not in estimates],
        moved=drift_texts.moved_signals(report.slices) if is_drift else [],
        slices=[] if is_drift else report.slices,
        charts=drift.signal_charts(report) if is_drift else [*evaluation.evaluation_charts(report)],
        quiet_charts=drift.signal_charts(report, quiet=True),
        windows=history.comparable_windows(report),
        over_time=history.effect_charts(report),
        heat_map=history.p_value_chart(report),
        difference_chart=evaluation.difference_chart,
        taken=_frequent_confusions(report.confusion),
    )
    return printable(html)


def _name(report: Report) -> str:
    """Name the subject of a report: a model, or two files."""
    file_names = [report.parameters.get(side) for side in ("current", "baseline")]
    if all(isinstance(file_name, str) for file_name in file_names):
        return " against ".join(str(file_name).rpartition("/")[2] for file_name in file_names)
    return f"{report.model.name} {report.model.version}".strip() or "A model"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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
