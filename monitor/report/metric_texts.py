"""Texts of metrics and numbers for people: titles, intervals, what was excluded."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import NormalDist
from typing import Any

import msgspec

from quadriga.monitor.report.schema import (
    ComparedSlice,
    Comparison,
    Confusion,
    Metric,
    Report,
    Slice,
)
from quadriga.quoting import one_line

UNDEFINED = "—"
_DECIMALS, _MAX_DECIMALS = 3, 9
"""Decimals of small numbers, and the most where fewer would round to 0 what is not."""

_DEFAULT_PARAMETERS = {"rule": "COCO", "iou": "0.50:0.95", "area": "all", "max_dets": 100}
"""Usual parameters, which titles leave out."""

_PARAMETER_TEXTS = {
    "iou": "IoU {}",
    "max_dets": "{} per image",
    "score": "score ≥ {}",
    "k": "k = {}",
    "average": "{} average",
    "bins": "{} bins",
    **dict.fromkeys(("area", "of", "label", "chosen", "rule"), "{}"),
}
_SHORT_TITLE_PARAMETERS = _PARAMETER_TEXTS.keys() - {"bins", "rule"}
"""Parameters named in short titles; for average precision the rule, too."""

_EXCLUSION_TEXTS = {
    "no_truth": "images whose truth is not known",
    "truth_rejected": "images whose ground truth was rejected",
    "truth_of_other_task": "images that have only ground truth of another task",
    "truth_of_other_model": "images that have only ground truth of another model",
    "several_labels": "images with several true labels",
    "no_label": "images with no true label",
    "unseen_label": "predictions of a label that no truth has",
    "over_max_dets": "predictions beyond the surest 100 of an image and a label",
    "unasked_prompt": "answers to a prompt that nobody asked",
    "unlisted_annotation": "annotations of an image or a category that is not listed",
    "unreadable": "images whose answer or truth is not of this task",
    "failed": "requests that failed",
    "deleted": "inferences that were deleted meanwhile",
    "duplicate": "earlier answers to the same image",
    "not_answered": "images that one of them did not answer",
    "other_task": "inferences of another task",
    "no_signals": "images without an embedding",
    "other_space": "embeddings of another model",
}

_LESS_IS_BETTER = {"ECE", "MCE", "Brier", "HammingLoss", "Unanswered"}
_MAX_HEADLINES = 16
_MAX_SLICES = 4
"""Slices that a sentence names."""
_MIN_IMAGES = 30
"""Images of a slice below which nothing is said about it."""
_ERROR_NAMES = {
    "Cls": "predictions of a wrong label",
    "Loc": "predictions in a poor place",
    "Both": "predictions of a wrong label in a poor place",
    "Dupe": "objects found twice",
    "Bkg": "predictions where nothing is",
    "Miss": "objects not found",
}
"""Kinds of errors of TIDE, each with a cost of its own."""
_MIN_COST = 0.005
"""Average precision below which the cost of an error is not worth a sentence."""
_MAX_COUNTED = 8
"""Labels whose objects are counted in a line."""


def title(metric: Metric, *, of_label: bool = True, short: bool = False) -> str:
    """Name a metric with its parameters, such as `AP, IoU 0.5, small`."""
    hidden = {"n"} if of_label else {"n", "label"}
    texts = [
        _parameter_text(key, value)
        for key, value in metric.parameters.items()
        if value is not None
        and _DEFAULT_PARAMETERS.get(key) != value
        and key not in hidden
        and (
            not short
            or key in _SHORT_TITLE_PARAMETERS
            or (key == "rule" and metric.type in {"AP", "AR"})
        )
    ]
    return ", ".join([metric.type, *texts])


def _parameter_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {name.replace('_', ' ')}"
    text = _short_number(value) if isinstance(value, float) else str(value)
    return _PARAMETER_TEXTS.get(name, name.replace("_", " ") + " {}").format(text)


def _short_number(value: float) -> str:
    """Format a threshold: in full if it has few decimals, as chosen ones have, otherwise to three digits."""
    return f"{value:.3g}" if round(value, 4) != value else f"{value:.4f}".rstrip("0").rstrip(".")


def titles(metrics: Sequence[Metric]) -> list[str]:
    """Name metrics that stand together: by short titles, by full ones where short titles would be equal."""
    short = [title(metric, short=True) for metric in metrics]
    return [
        (name if short.count(name) == 1 else title(metric))
        + (" (less is better)" if metric.type in _LESS_IS_BETTER else "")
        for name, metric in zip(short, metrics, strict=True)
    ]


def format_number(value: Any, decimals: int = 3) -> str:
    """Format a number; an undefined one as a dash."""
    if value is None:
        return UNDEFINED
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 2 and value == int(value)):
        text = f"{value:,.0f}"
    else:
        text = f"{value:z.{decimals}f}" if abs(value) < 10 else f"{value:,.1f}"
    return text.replace("-", "\N{MINUS SIGN}")


def format_time(value: str | None) -> str:
    """Format a time in RFC 3339 to the second: `2026-11-28 15:03:03 UTC`; empty if it is not known, as text if it is none."""
    if not value:
        return ""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return one_line(value, 40)
    if at.tzinfo is None:
        return f"{at:%Y-%m-%d %H:%M:%S}"
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_value(metric: Metric) -> str:
    """Format the value of a metric; one that rounds to 0 as finely as its interval, if that excludes 0."""
    value = metric.value
    is_small = isinstance(value, float) and not round(value, _DECIMALS)
    return format_number(value, _decimals(metric) if is_small else _DECIMALS)


def format_difference(metric: Metric | None) -> str:
    """Format the value of a difference with its sign."""
    if metric is None or metric.value is None:
        return UNDEFINED
    return ("+" if metric.value > 0 else "") + format_value(metric)


def sample_size_text(metric: Metric) -> str:
    """Format the sample size of a metric; the unit is named unless it is images."""
    return f"{format_number(metric.n)} {metric.parameters.get('n', '')}".rstrip()


def format_interval(metric: Metric) -> str:
    """Format the 95 % interval of a metric; if it excludes 0, with as many decimals as no bound of it is rounded to 0."""
    if metric.ci95 is None:
        return UNDEFINED
    decimals = _decimals(metric)
    low, high = (format_number(bound, decimals) for bound in metric.ci95)
    return f"{low} to {high}"


def _decimals(metric: Metric) -> int:
    """Return the number of decimals from which an interval that excludes 0 is seen to do so."""
    low, high = metric.ci95 or (None, None)
    if low is None or high is None or low <= 0 <= high:
        return _DECIMALS
    nearest = min(abs(low), abs(high))
    return next((n for n in range(_DECIMALS, _MAX_DECIMALS) if round(nearest, n)), _MAX_DECIMALS)


def difference_rows(comparison: Comparison) -> list[tuple[str, Metric, Metric | None]]:
    """Return the name, the metric and the difference of each headline of another model.

    The difference is None if the two models were not evaluated alike. Metrics of the best k of no more than k labels
    have no row.
    """
    differences_by_metric = {
        (metric.type, repr(metric.parameters)): metric for metric in comparison.differences
    }
    metrics = [metric for metric in comparison.metrics if not is_beyond_labels(metric)]
    return [
        (name, metric, differences_by_metric.get((metric.type, repr(metric.parameters))))
        for name, metric in zip(titles(metrics), metrics, strict=True)
    ]


def difference_reach(differences: Iterable[Metric]) -> float:
    """Return the number up to which a scale reaches that has room for some differences and their intervals, up to 1."""
    numbers = (number for by in differences for number in (by.value, *(by.ci95 or ())))
    near = (abs(number) for number in numbers if number is not None and abs(number) <= 1)
    return max(near, default=0.0) or 1.0


def excluded_text(excluded: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the count and the description of each kind of excluded items."""
    rows = []
    for reason, count in excluded.items():
        source_reason = reason.removeprefix("baseline_")
        description = _EXCLUSION_TEXTS.get(
            source_reason, source_reason.replace("_", " ")
        ) + " in the baseline" * (source_reason != reason)
        if count:
            rows.append((f"{count:,}", description))
    return rows


def is_beyond_labels(metric: Metric) -> bool:
    """Check whether a metric asks for the best k of no more than k labels, of which nothing can be measured."""
    return metric.type == "TopKAccuracy" and metric.value is None and not metric.reason


def headlines(report: Report) -> list[Metric]:
    """Return the headlines of an evaluation that tables show.

    They are the metrics that slices, other models and the bootstrap have, too, without those of the best k of no more
    than k labels.
    """
    metrics = [] if report.kind == "drift" else _all_headlines(report)
    return [metric for metric in metrics if not is_beyond_labels(metric)]


def slice_headlines(report: Report, slice_: Slice) -> list[Metric]:
    """Return the headlines of a slice, without those that the report's own headlines leave out."""
    hidden = {
        (metric.type, str(metric.parameters))
        for metric in report.metrics
        if is_beyond_labels(metric)
    }
    return [
        metric for metric in slice_.metrics if (metric.type, str(metric.parameters)) not in hidden
    ]


def _all_headlines(report: Report) -> list[Metric]:
    compared_metrics = [item.metrics for item in report.comparisons] + [
        item.metrics for item in report.slices
    ]
    if compared_metrics and compared_metrics[0]:
        return report.metrics[: len(compared_metrics[0])]
    with_interval = [
        index
        for index, item in enumerate(report.metrics)
        if item.ci95 is not None or item.ci_reason
    ]
    if with_interval:
        return report.metrics[: with_interval[-1] + 1]
    return [item for item in report.metrics if item.parameters.get("label") is None][
        :_MAX_HEADLINES
    ]


def headline(report: Report) -> str:
    """Say in one sentence how good a model is, by its first metric; an empty text for a report without any."""
    metrics = [metric for metric in headlines(report) if metric.value is not None]
    if not metrics:
        return ""
    first, name = metrics[0], titles(headlines(report)[:1])[0]
    interval = f" ({format_interval(first)})" if first.ci95 is not None else ""
    text = f"{name} is {format_number(first.value)}{interval} on {report.data.current.n:,} images"
    differences = [item for item in report.comparisons if item.differences]
    if differences:
        both = differences[0].n
        text += f", {_difference_sentence(differences[0])}"
        if both != report.data.current.n:
            text += f" (of the {both:,} images that both have answered)"
    return f"{text}."


def findings(report: Report) -> list[str]:
    """Say in a sentence each where an evaluation is worst and which errors cost most; nothing that its numbers do not show."""
    sentences = []
    if (part := worst_slice(report)) is not None:
        metric = part.metrics[0]
        value = f"{titles(headlines(report)[:1])[0]} {format_number(metric.value)}"
        sentences.append(f"Worst: {_slice_words(part)}, {value} on {part.n:,} images.")
    costs = {kind: cost for kind in _ERROR_NAMES if (cost := report.errors_tide.get(kind))}
    kind = max(costs, key=costs.__getitem__, default="")
    if kind and costs[kind] >= _MIN_COST:
        iou = report.parameters.get("tide", {}).get("iou", 0.5)
        reached = next((at.value for at in report.metrics if _is_mean_precision(at, iou)), None)
        lost = 0.0 if reached is None else 1 - reached
        share = f", {100 * costs[kind] / lost:.0f} % of what is lost" if lost else ""
        name = _ERROR_NAMES[kind].capitalize()
        sentences.append(f"{name} cost most: {costs[kind]:.3f} of AP at IoU {iou:g}{share}.")
    return sentences


def _is_mean_precision(metric: Metric, iou: float) -> bool:
    """Check whether a metric is the average precision of all labels and sizes at a match threshold."""
    parameters = {"label": None, "area": "all"} | metric.parameters
    place = parameters["label"], parameters["area"], parameters.get("iou")
    return metric.type == "AP" and metric.value is not None and place == (None, "all", iou)


def worst_slice(report: Report) -> Slice | None:
    """Return the slice with the worst first metric of those that are worse than all images beyond chance; None if none is.

    The interval of a slice has to lie on the bad side of the value of all images, widened so that of all slices together
    one in 40 cases is chance (Bonferroni); slices of fewer than 30 images do not count.
    """
    overall = next(iter(headlines(report)), None)
    if overall is None or overall.value is None:
        return None
    sign = -1 if is_less_better(overall) else 1
    judged = []
    for part in report.slices:
        metric = part.metrics[0] if part.metrics and part.n >= _MIN_IMAGES else None
        if metric is None or metric.value is None or metric.ci95 is None:
            continue
        near = metric.ci95[0 if is_less_better(metric) else 1]  # the bound towards better values
        if near is not None:
            judged.append((sign * metric.value, sign * near, part))
    normal = NormalDist()
    wider = normal.inv_cdf(1 - 0.025 / max(len(judged), 1)) / normal.inv_cdf(0.975)
    limit = sign * overall.value
    worse = [row for row in judged if row[0] + wider * (row[1] - row[0]) < limit]
    return min(worse, key=lambda row: row[0])[2] if worse else None


def is_worse_slice(part: Slice, report: Report) -> bool:
    """Check whether the interval of a slice lies on the bad side of the value of all images."""
    overall = report.metrics[0].value if report.metrics else None
    metric = part.metrics[0] if part.metrics else None
    if overall is None or metric is None or metric.ci95 is None:
        return False
    low, high = metric.ci95
    if is_less_better(metric):
        return low is not None and low > overall
    return high is not None and high < overall


def _slice_words(part: Slice) -> str:
    """Name a slice for a sentence: `camera east`, or the name of the filter that it passes."""
    value = part.value or ""
    if value.startswith('"'):  # a text that a filter would read as something else
        value = str(msgspec.json.decode(value))
    if part.by.startswith("meta.") or value not in {"true", "false"}:
        return f"{one_line(part.by.removeprefix('meta.'))} {one_line(value)}"
    return slice_name(part.by, value)


def table_metrics(report: Report) -> list[Metric]:
    """Return the metrics of the first table of an evaluation: its headlines, and the rates of objects at the working score."""
    metrics = headlines(report)
    if any(metric.type == "Precision" for metric in metrics):
        return metrics
    return [*metrics, *_rates(report.confusion or Confusion())]


def _rates(confusion: Confusion) -> list[Metric]:
    """Return precision, recall and F1 of all labels as a confusion matrix of objects counts them; none if it leaves labels out."""
    named = {key: confusion.parameters[key] for key in ("score", "iou") if key in confusion.parameters}  # fmt: skip
    labels = confusion.labels
    if len(named) < 2 or confusion.parameters.get("labels", len(labels)) != len(labels):
        return []
    matched = sum(map(sum, confusion.matrix))
    predicted = matched + sum(confusion.hallucinations.values())
    actual = matched + sum(confusion.misses.values())
    right = sum(row[at] for at, row in enumerate(confusion.matrix))
    return [
        Metric(name, part / total if total else None, named | {"n": unit}, n=n)
        for name, part, total, n, unit in (
            ("Precision", right, predicted, predicted, "predictions"),
            ("Recall", right, actual, actual, "objects"),
            ("F1", 2 * right, predicted + actual, actual, "objects"),
        )
    ]


def label_cells(metrics: Iterable[Metric]) -> dict[tuple[str, str], str]:
    """Arrange the metrics of labels as a table: the value of each label and each title."""
    return {
        (metric.parameters["label"], title(metric, of_label=False)): format_number(metric.value)
        for metric in metrics
    }


def counts_by_label(report: Report) -> str:
    """Say how many objects of each label there are, the most frequent first, such as `957 objects: star 524, ring 433`."""
    confusion = report.confusion or Confusion()
    counts = {
        label: sum(row) + confusion.misses.get(label, 0)
        for label, row in zip(confusion.labels, confusion.matrix, strict=False)
    }
    if not any(counts.values()):
        return ""
    ordered = sorted(counts.items(), key=lambda entry: -entry[1])
    named = ", ".join(f"{one_line(label, 24)} {n:,}" for label, n in ordered[:_MAX_COUNTED])
    more = len(ordered) - _MAX_COUNTED
    unit = confusion.parameters.get("of", "objects")
    return f"{sum(counts.values()):,} {unit}: {named}{f' and {more:,} more labels' if more > 0 else ''}"


def is_less_better(metric: Metric) -> bool:
    """Check whether smaller values of a metric are better, as of errors."""
    return metric.type in _LESS_IS_BETTER


def difference_verdict(difference: Metric) -> str:
    """Say what a difference shows: `better`, `worse`, `no difference shown`, or why that is not known."""
    low, high = difference.ci95 or (None, None)
    if difference.value is None or low is None or high is None:
        return difference.ci_reason or "no interval"
    if low <= 0 <= high:
        return "no difference shown"
    return "better" if (low > 0) != is_less_better(difference) else "worse"


def slice_name(by: str, value: str | None) -> str:
    """Name a slice: `meta.camera=north`, or the name of the filter that it passes."""
    if value in {"true", "false"} and not by.startswith("meta."):
        return one_line(by if value == "true" else f"not {by}")
    return f"{one_line(by)}={one_line(value)}"


def comparison_sentence(report: Report, comparison: Comparison) -> str:
    """Say in one sentence which of two models is better, by the first metric, and where."""
    text = _difference_sentence(comparison)
    if text.startswith(("better", "worse")):
        text = f"{one_line(f'{report.model.name} {report.model.version}'.strip())} is {text}"
    return f"{text[0].upper() if text.startswith('no') else text[0]}{text[1:]}."


def comparison_values(comparison: Comparison) -> str:
    """Say the first metric of both models on the images that both have answered."""
    own = comparison.metrics[0].value
    difference = comparison.differences[0].value
    if own is None or difference is None:
        return ""
    name = titles(comparison.differences[:1])[0]
    values = f"{format_number(own + difference)}, beside {format_number(own)}"
    return f"{name} {values} on {comparison.n:,} images"


def _difference_sentence(comparison: Comparison) -> str:
    """Say whether the first metric is better or worse than that of another model, and where."""
    metric, model = comparison.differences[0], comparison.model
    name = one_line(f"{model.name} {model.version}".strip())
    if not comparison.n:
        return f"not comparable with {name}, as no image with ground truth was answered by both"
    if metric.value is None:
        return f"not comparable with {name}"
    verdict = difference_verdict(metric)
    text = f"no certain difference to {name}"
    if verdict in {"better", "worse"}:
        text = f"{verdict} than {name} by {_size_text(metric)}"
    return text + "".join(
        _slices_text(comparison.slices, word, metric.value if word == verdict else None)
        for word in ("better", "worse")
    )


def _slices_text(slices: Sequence[ComparedSlice], verdict: str, overall: float | None) -> str:
    """Name the slices where a model is better, or worse, those with the largest differences first.

    `overall` is the difference of all images where they have this verdict: slices that may be as all are say nothing.
    """
    differences = [
        (item.differences[0], slice_name(item.by, item.value))
        for item in slices
        if item.differences
        and difference_verdict(item.differences[0]) == verdict
        and (overall is None or not _is_within(overall, item.differences[0]))
    ]
    if not differences:
        return ""
    differences.sort(key=lambda entry: -abs(entry[0].value or 0))
    names = ", ".join(f"{name} by {_size_text(by)}" for by, name in differences[:_MAX_SLICES])
    extra = f" and {len(differences) - _MAX_SLICES} more" if len(differences) > _MAX_SLICES else ""
    return f"; {verdict} where {names}{extra}"


def _is_within(value: float, metric: Metric) -> bool:
    """Check whether a value lies in the interval of a metric that has one."""
    low, high = metric.ci95 or (None, None)
    return low is not None and high is not None and low <= value <= high


def _size_text(difference: Metric) -> str:
    """Format how large a difference is, without its sign."""
    return format_value(difference).removeprefix("\N{MINUS SIGN}")


def headline_notes(report: Report) -> list[str]:
    """Return sentences for what headlines do not have: an interval, or a value for want of an extra."""
    metrics = headlines(report)
    names_by_reason: dict[str, list[str]] = {}
    for name, metric in zip(titles(metrics), metrics, strict=True):
        if metric.ci95 is None and metric.ci_reason and not metric.reason:
            names_by_reason.setdefault(metric.ci_reason, []).append(name)
    notes = [
        f"No interval of {'; '.join(names)}: {reason}." for reason, names in names_by_reason.items()
    ]
    missing = report.parameters.get("missing")
    if isinstance(missing, str):
        reason = "Undefined, as an extra was not installed where this was evaluated."
        notes.append(f"{reason} {one_line(missing, 200)}")
    return notes


def format_brief(value: float | None) -> str:
    """Format a p-value or an effect; below 0.001 in scientific notation."""
    if value is None:
        return UNDEFINED
    if value and abs(value) < 0.001:
        return f"{value:.0e}"
    return format_number(float(value))
