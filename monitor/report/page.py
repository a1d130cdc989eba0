"""A report as a page: what it shows, for the console, and as one self-contained HTML file to read, print and pass on."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.charts import drift, evaluation, history
from quadriga.monitor.report.charts.drawing import Axes
from quadriga.monitor.report.gallery import (
    ImageBytes,
    Pictures,
    changed_cards,
    embedded_pictures,
    unlike_cards,
    worst_cards,
)
from quadriga.monitor.report.schema import Confusion, Metric, Report, sorted_by_effect
from quadriga.quoting import one_line, printable
from quadriga.tasks.arrays import Int64Array

MAX_ROWS = 300
MAX_CHANGES = 24
"""Signals that are shown in full; the table of all signals has the others."""
MAX_LABELS = 25
_MAX_CONFUSIONS = 20
_LABEL_METRICS = ("AP", "IOU", "F1", "AveragePrecision")
"""Metrics that labels are put in order by: the first of these that the report has of labels."""


def render_page(report: Report, image_bytes: ImageBytes, console: str | None = None) -> str:
    """Render a report of any kind and task as an HTML page; sections without content are omitted.

    Args:
        report: The report.
        image_bytes: Returns the file of an image by its hash or path, as in `Worst.image`; None if it is not stored.
        console: URL of the console, to which links to inferences and reports lead; None for no links.
    """
    html = _page_template().render(
        **page_content(report, embedded_pictures(image_bytes)),
        name=one_line(_name(report), 100),
        targets=None,
        console=console,
    )
    return printable(html)


@cache
def _page_template() -> Any:
    return make_environment().get_template("page.html.jinja")


def make_environment(*folders: tuple[str, str]) -> Any:
    """Make jinja2's environment of the templates of reports, with the functions that these call by name.

    Args:
        folders: Packages, and folders within them, whose templates go before.
    """
    from jinja2 import (  # noqa: PLC0415 - a server that shows no page does without it
        ChoiceLoader,
        Environment,
        PackageLoader,
        StrictUndefined,
    )

    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader(*folder) for folder in (*folders, ("quadriga.monitor.report", "."))]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = vars(metric_texts) | vars(drift_texts)
    environment.filters.update(texts | {"json": _json, "interval": draw_interval})
    environment.filters["signal_chart"] = drift.chart_of
    environment.globals["FIRST_SCORE"] = evaluation.FIRST_SCORE
    return environment


def page_content(report: Report, pictures: Pictures) -> dict[str, Any]:
    """Return what the parts of a report show, by the names that the templates have for it."""
    is_drift = report.kind == "drift"
    is_measured = not is_drift and report.status != "insufficient"  # there is ground truth
    estimates = drift_texts.estimated_metrics(report.metrics)
    headlines, changes = metric_texts.table_metrics(report), change_content(report, pictures)
    return {
        "report": report,
        "is_bare": not report.data.current.n or not (headlines or changes["changes"]),
        "headline": drift_texts.headline(report) or metric_texts.headline(report),
        "explanation": drift_texts.explanation(report) or " ".join(metric_texts.findings(report)),
        "notes": [*drift_texts.caveats(report), *metric_texts.headline_notes(report)],
        **changes,
        "worst": worst_cards(report, pictures) if report.worst else [],
        "unlike": unlike_cards(report, pictures) if report.unlike else [],
        "signals": sorted_by_effect(report.signals),
        "signal_titles": drift_texts.signal_titles(
            (signal.name for signal in report.signals), report
        ),
        "estimates": estimates,
        "headlines": headlines,
        "metrics": [metric for metric in report.metrics if metric not in estimates],
        "slices": [] if is_drift else report.slices,
        "labels": None if is_drift else label_table(report),
        "matrices": [
            (name, matrix_of(confusion))
            for name, confusion in (
                ("Confusion", report.confusion),
                ("Confusion by pixels", report.confusion_pixels),
            )
            if confusion is not None and confusion.labels
        ],
        "counted_unit": counted_unit(report.confusion),
        "confusion_rule": confusion_rule(report.confusion),
        "curves": evaluation.score_curves(report) if is_measured else None,
        "charts": evaluation.evaluation_charts(report) if is_measured else [],
        "quiet_charts": drift.quiet_charts(report) if is_drift else [],
        "windows": history.comparable_windows(report) if report.history else [],
        "over_time": history.effect_charts(report) if report.history else [],
        "heat_map": history.p_value_chart(report) if report.history else None,
        "confusions": _frequent_confusions(report.confusion),
    }


def change_content(report: Report, pictures: Pictures) -> dict[str, Any]:
    """Return what the part about changed signals shows."""
    return {
        "changes": drift_texts.signals_in_full(report)[:MAX_CHANGES],
        "changed_cards": changed_cards(report, pictures) if report.changed else {},
        "moved": drift_texts.moved_signals(report.slices) if report.kind == "drift" else [],
    }


def _name(report: Report) -> str:
    """Name the subject of a report: a model, or two files."""
    file_names = [report.parameters.get(side) for side in ("current", "baseline")]
    if all(isinstance(file_name, str) for file_name in file_names):
        return " against ".join(str(file_name).rpartition("/")[2] for file_name in file_names)
    return f"{report.model.name} {report.model.version}".strip() or "A model"


def draw_interval(
    metric: Metric | None,
    reach: tuple[float, float] = (0.0, 1.0),
    *,
    width: int = 128,
    style: str = "1",
) -> Markup:
    """Draw the value of a metric as a dot with its 95 % interval, for a row of a table; nothing for one out of reach.

    Args:
        metric: The metric.
        reach: Numbers at the left and the right side; 0 between them is a line.
        width: Width in pixels.
        style: Class of the dot and the interval in the style sheet, after `f` and `l`.
    """
    if metric is None or metric.value is None or not reach[0] <= metric.value <= reach[1]:
        return Markup()
    axes = Axes((4.0, 1.0, width - 4.0, 17.0), reach, (-1.0, 1.0))
    axes.line("axis", [(end, 0) for end in reach])
    if reach[0] < 0:
        axes.line("axis-strong", [(0, -1), (0, 1)])
    low, high = metric.ci95 or (None, None)
    if low is not None and high is not None:
        axes.line(f"l{style}", [(min(max(end, reach[0]), reach[1]), 0) for end in (low, high)])
    axes.dot(f"f{style}", metric.value, 0, 4)
    svg = Markup('<svg width="{0}" height="18" viewBox="0 0 {0} 18" aria-hidden="true">{1}</svg>')
    return svg.format(width, Markup("").join(axes.parts))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class LabelRow(msgspec.Struct, frozen=True):
    """A label with how well it is found; counts are None if the confusion matrix leaves the label out."""

    metric: Metric
    hits: int | None
    lost: dict[str, int] | None
    """How often it was taken for each other label, and missed, by an empty text."""
    wrong: dict[str, int] | None
    """How often it was predicted where each other label is true, and nothing, by an empty text."""

    @property
    def label(self) -> str:
        """The label."""
        return str(self.metric.parameters["label"])


class LabelTable(msgspec.Struct, frozen=True):
    """The labels of an evaluation."""

    metric: str
    """Name of the metric that they are in order of."""
    rows: list[LabelRow]
    more: int
    """Number of labels that are left out: the best ones, and those without a value."""
    is_whole: bool
    """Whether the confusion matrix has all labels, so that its sums are those of all."""

    @property
    def has_counts(self) -> bool:
        """Whether the confusion matrix has any of them."""
        return any(row.hits is not None for row in self.rows)


def label_table(report: Report) -> LabelTable | None:
    """Return the labels of an evaluation, the worst first; None for a report without metrics of labels."""
    metrics = _label_metrics(report.metrics)
    if not metrics:
        return None
    ordered = sorted(metrics, key=lambda metric: (metric.value is None, metric.value or 0.0))
    confusion = report.confusion or Confusion()
    count = len(confusion.labels)
    return LabelTable(
        one_line(metric_texts.title(metrics[0], of_label=False, short=True)),
        [_label_row(metric, confusion) for metric in ordered[:MAX_ROWS]],
        max(len(ordered) - MAX_ROWS, 0),
        is_whole=bool(confusion.parameters.get("labels", count) == count),
    )


def _label_metrics(metrics: Sequence[Metric]) -> list[Metric]:
    """Return a metric of each label: those of the first kind, rule and threshold that labels have."""
    labelled = [metric for metric in metrics if isinstance(metric.parameters.get("label"), str)]
    for kind in _LABEL_METRICS:
        of_kind = [metric for metric in labelled if metric.type == kind]
        if of_kind:
            return [metric for metric in of_kind if _rule(metric) == _rule(of_kind[0])]
    return []


def _rule(metric: Metric) -> dict[str, Any]:
    return {name: value for name, value in metric.parameters.items() if name not in {"label", "n"}}


def _label_row(metric: Metric, confusion: Confusion) -> LabelRow:
    label, labels = metric.parameters["label"], confusion.labels
    if label not in labels:
        return LabelRow(metric, None, None, None)
    place = labels.index(label)
    lost = dict(zip(labels, confusion.matrix[place], strict=True))
    wrong = {other: row[place] for other, row in zip(labels, confusion.matrix, strict=True)}
    hits = lost.pop(label)
    del wrong[label]
    for counts, alone in ((lost, confusion.misses), (wrong, confusion.hallucinations)):
        counts[""] = counts.get("", 0) + alone.get(label, 0)
    errors = ({other: n for other, n in counts.items() if n} for counts in (lost, wrong))
    return LabelRow(metric, hits, *errors)


class Matrix(msgspec.Struct, frozen=True):
    """A confusion matrix as far as it is shown."""

    counts: dict[str | None, dict[str | None, int]]
    """Counts by truth and prediction. None comes last: no object, and, if any object was missed, no prediction."""
    top: int
    """The largest count."""
    more: int
    """Number of labels that are left out: those with the fewest errors."""


def matrix_of(confusion: Confusion) -> Matrix:
    """Return the confusion matrix of the labels with the most errors, in their order."""
    counts, labels = _with_background(confusion), [*confusion.labels, None]
    size = len(confusion.labels)
    errors = (counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts))[:size]
    shown = np.sort(np.argsort(-errors, kind="stable")[:MAX_LABELS]).tolist()
    rows, columns = (
        [*shown, *([size] if alone.any() else [])] for alone in (counts[size], counts[:, size])
    )
    cells = {
        labels[row]: {
            labels[column]: int(counts[row, column])
            for column in columns
            if row + column < 2 * size
        }
        for row in rows
    }
    top = int(counts[np.ix_(rows, columns)].max())
    return Matrix(cells, top, max(size - MAX_LABELS, 0))


def _with_background(confusion: Confusion) -> Int64Array:
    """Return counts int64 (K + 1, K + 1), true label by row; the last row and column are the background."""
    size = len(confusion.labels)
    counts = np.zeros((size + 1, size + 1), np.int64)
    if confusion.matrix:
        counts[:size, :size] = confusion.matrix
    counts[size, :size] = [confusion.hallucinations.get(label, 0) for label in confusion.labels]
    counts[:size, size] = [confusion.misses.get(label, 0) for label in confusion.labels]
    return counts


def _frequent_confusions(
    confusion: Confusion | None,
) -> list[tuple[str | None, str | None, int, list[str]]]:
    """Return the most frequent confusions: true label, predicted label, count, ids of example inferences."""
    if confusion is None or not confusion.labels:
        return []
    counts, names = _with_background(confusion), [*confusion.labels, None]
    examples: dict[tuple[str | None, str | None], list[str]] = {}
    for example in confusion.examples:
        examples.setdefault((example.truth, example.predicted), []).append(example.inference_id)
    np.fill_diagonal(counts, 0)
    cells = sorted(np.argwhere(counts).tolist(), key=lambda cell: -counts[*cell])
    return [
        (*pair, int(counts[row, column]), list(dict.fromkeys(examples.get(pair, [])))[:3])
        for row, column in cells[:_MAX_CONFUSIONS]
        for pair in [(names[row], names[column])]
    ]


def cell_count(confusion: Confusion, truth: str | None, predicted: str | None) -> int | None:
    """Return the count of a cell; empty labels are no object and no prediction. None for several cells, or one that is not there."""
    if truth is None or predicted is None:
        return None
    if not truth:
        return confusion.hallucinations.get(predicted)
    if not predicted:
        return confusion.misses.get(truth)
    labels = confusion.labels
    if truth not in labels or predicted not in labels:
        return None
    return confusion.matrix[labels.index(truth)][labels.index(predicted)]


def counted_unit(confusion: Confusion | None) -> str:
    """Return what a confusion matrix counts: objects, images or pixels."""
    return str((confusion or Confusion()).parameters.get("of", "objects"))


def confusion_rule(confusion: Confusion | None) -> str:
    """Say from which score and overlap a confusion matrix counts; empty where it counts all alike."""
    parameters: dict[str, Any] = {} if confusion is None else confusion.parameters
    if parameters.get("score") is None or parameters.get("iou") is None:
        return ""
    score, iou = (f"{parameters[name]:.4g}" for name in ("score", "iou"))
    return f"predictions with a score of at least {score}, overlap (IoU) at least {iou}"
