"""Texts of drift reports for people: the verdict, signals, slices, estimates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from quadriga.monitor.report.metric_texts import UNDEFINED, format_brief, format_number, one_line
from quadriga.monitor.report.schema import (
    Effect,
    Metric,
    PastWindow,
    Report,
    Signal,
    Slice,
    effect_ratio,
    sorted_by_effect,
)

_MAX_ALARMS = 16
"""Maximum number of signals that are named."""


def verdict(report: Report) -> str:
    """Summarise the outcome of a drift comparison; for an evaluation, only what is wrong with it."""
    if report.status == "error":
        return "The report could not be finished; what follows may be incomplete."
    if report.kind == "evaluation":
        has_ground_truth = report.status != "insufficient"
        return (
            "" if has_ground_truth else "No image has ground truth, so there is nothing to measure."
        )
    count, alarms = len(report.signals), sum(signal.alarm for signal in report.signals)
    insufficient_count, low_power_count = (
        sum(signal.status == status for signal in report.signals)
        for status in ("insufficient", "low_power")
    )
    undecided = undecided_signals(report)
    if insufficient_count == count and not undecided:
        return "Insufficient: there are too few independent values to say anything; an alarm needs 30 on each side."
    if alarms:
        sentences = [f"Drift: {alarms} of {_signal_count_text(count)} changed."]
    elif report.status == "insufficient":
        moved = _signal_count_text(len(undecided))
        sentences = [f"Insufficient: {moved} moved, with too few independent values to judge."]
    else:
        sentences = [f"No drift in {_signal_count_text(count - insufficient_count)}."]
    insufficient_count -= len(undecided) if report.status == "insufficient" else 0
    if insufficient_count:
        sentences.append(
            f"Of {_signal_count_text(insufficient_count)} there is too little to say anything."
        )
    if maybe_chance := sum(map(is_maybe_chance, report.signals)):
        sentences.append(
            f"{_signal_count_text(maybe_chance)} moved by more than matters, which may be chance."
        )
    if low_power_count and not alarms:
        sentences.append(
            f"In {_signal_count_text(low_power_count)} only large changes would be seen."
        )
    if "baseline_sha256" in report.parameters:
        sentences.append("Another model answered than in the baseline.")
    return " ".join(sentences)


def _signal_count_text(count: int) -> str:
    return f"{count:,} signal{'s' * (count != 1)}"


def undecided_signals(report: Report) -> list[Signal]:
    """Return the signals that moved by more than matters but have too few independent values, the farthest first."""
    return sorted_by_effect(filter(is_undecided, report.signals))


def is_undecided(signal: Signal) -> bool:
    """Check whether a signal moved by more than matters, but has too few independent values to say so.

    What chance alone explains, were all values independent, did not move.
    """
    is_insufficient = signal.status == "insufficient" and not signal.alarm
    return is_insufficient and effect_ratio(signal) >= 1 and signal.moved is not False


def maybe_chance_signals(report: Report) -> list[Signal]:
    """Return the signals that moved by more than matters, but by no more than chance may move them, the farthest first."""
    return sorted_by_effect(filter(is_maybe_chance, report.signals))


def is_maybe_chance(signal: Signal) -> bool:
    """Check whether a signal moved by more than matters, but by no more than chance may move it.

    Of 100 independent values on each side chance alone moves seven in ten unchanged numbers that far, of 300 two in ten.
    """
    return signal.status != "insufficient" and not signal.alarm and effect_ratio(signal) >= 1


def status_text(signal: Signal) -> str:
    """Describe whether a signal raised an alarm, and whether it could have."""
    power = signal.status.replace("_", " ")
    if is_maybe_chance(signal):
        return "may be chance" + (", low power" if signal.status == "low_power" else "")
    if not signal.alarm:
        return power
    return "ALARM" if signal.status == "ok" else f"ALARM, {power}"


def began_text(signal: Signal) -> str:
    """Say where within the window a signal changed, such as `from about row 300 of 1,000 on, 0.02 to 2.01`; empty if nowhere."""
    began = signal.began
    if began is None:
        return ""
    rows = f"{began.row:,}" if began.end is None else f"{began.row:,} to {began.end:,}"
    if began.row == 0 and began.end is not None:
        place, moment = f"until about row {began.end:,} of {began.n:,}", began.until
    else:
        on = " on" * (began.end is None)
        place, moment = f"from about row {rows} of {began.n:,}{on}", began.at
    if moment is not None:
        last = f" to {_minute(began.until)}" if began.row and began.until else ""
        place = f"{place} ({_minute(moment)}{last} UTC)"
    if began.before is None or began.after is None:
        return place
    if signal.kind == "categorical":
        label = "values there" if began.label == "yes" else f"share of {one_line(began.label)}"
        return f"{place}, {label} {100 * began.before:.0f} % to {100 * began.after:.0f} %"
    digits = 2 if abs(began.after - began.before) < 10 else 0
    levels = [f"{level:,.{digits}f}" for level in (began.before, began.after)]
    if levels[0] == levels[1]:
        levels = [format_brief(level) for level in (began.before, began.after)]
    return f"{place}, {' to '.join(levels)}".replace("-0.00", "0.00")


def _minute(moment: str | None) -> str:
    return (moment or "")[:16].replace("T", " ")


def format_effect(effect: Effect) -> str:
    """Format an effect with its minimum."""
    return (
        UNDEFINED
        if effect.value is None
        else f"{format_brief(effect.value)} ({format_brief(effect.minimum)})"
    )


def rows_text(signal: Signal) -> str:
    """Say how many rows were compared, and how many independent ones they are worth, such as `902 / 969 rows, 60 / 65 independent`."""
    return f"{format_sides(signal.n)} rows, {format_sides(signal.n_eff)} independent"


def format_sides(pair: Sequence[float]) -> str:
    """Format a number of the baseline and one of the current window."""
    return " / ".join(f"{value:,.0f}" for value in pair)


class MovedSignal(NamedTuple):
    """Texts about a signal in the slice of the window that carries its alarm."""

    signal: str
    by: str
    value: str
    n: str
    effect: str
    """Effect in the slice."""
    other: str
    """Effect in all other images."""
    p: str


def moved_signals(slices: Iterable[Slice]) -> list[MovedSignal]:
    """Describe the signals that moved, in the order of the slices."""
    return [
        MovedSignal(
            signal=one_line(str(metric.parameters.get("signal", metric.type))),
            by=one_line(slice_.by),
            value=one_line(slice_.value),
            n=format_number(slice_.n),
            effect=format_brief(metric.value),
            other=format_brief(metric.parameters.get("other")),
            p=format_brief(metric.parameters.get("p_adjusted")),
        )
        for slice_ in slices
        for metric in slice_.metrics
    ]


def alarmed_signals(window: PastWindow, titles: Mapping[str, str]) -> str:
    """Name the signals of a window with an alarm, by their titles as far as they have some."""
    names = [
        titles.get(name, one_line(name)) for name, signal in window.signals.items() if signal.alarm
    ]
    unnamed_count = len(names) - _MAX_ALARMS
    return ", ".join(
        names[:_MAX_ALARMS] + ([f"{unnamed_count:,} more"] if unnamed_count > 0 else [])
    )


def estimated_metrics(metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics that are estimated without ground truth."""
    return [metric for metric in metrics if metric.type.startswith("Estimated")]


def validity_notes(metrics: Iterable[Metric]) -> list[str]:
    """Return the conditions under which estimates hold, each sentence once."""
    texts = (one_line(str(text.parameters.get("valid", "")), 400) for text in metrics)
    return [text[0].upper() + text[1:] for text in dict.fromkeys(texts) if text != "(empty)"]


def method_name(metric: Metric) -> str:
    """Name the method of an estimate."""
    return one_line(str(metric.parameters.get("method", "")).replace("_", " "))


EFFECT_DESCRIPTIONS = {
    "wasserstein_iqr": "how far values moved, in interquartile ranges",
    "total_variation": "share of values with another label",
    "energy_coefficient": "energy distance, as a share of the largest",
    "mmd_coefficient": "MMD, as a share of the largest",
}
"""Descriptions of effects, by name."""
