"""Texts of drift reports for people: the verdict, signals, slices, estimates."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quadriga.monitor.report.metric_texts import UNDEFINED, format_brief, format_number, one_line
from quadriga.monitor.report.schema import (
    Effect,
    Metric,
    PastWindow,
    Report,
    Signal,
    Slice,
)

_MAX_ALARMS = 16
"""Maximum number of signals that are named."""


def verdict(report: Report) -> str:
    """Say in words what came out of a comparison, and of an evaluation what is wrong with it."""
    if report.status == "error":
        return "The report could not be finished; what follows may be incomplete."
    if report.kind == "evaluation":
        is_known = report.status != "insufficient"
        return "" if is_known else "There are too few images with a known truth to say anything."
    count, alarms = len(report.signals), sum(one.alarm for one in report.signals)
    silent, weak = (
        sum(one.status == status for one in report.signals)
        for status in ("insufficient", "low_power")
    )
    if silent == count:
        return "Insufficient: there are too few independent values to say anything; an alarm needs 30 on each side."
    said = [
        f"Drift: {alarms} of {_signals(count)} changed."
        if alarms
        else f"No drift in {_signals(count - silent)}."
    ]
    if silent:
        said.append(f"Of {_signals(silent)} there is too little to say anything.")
    if weak and not alarms:
        said.append(f"In {_signals(weak)} only large changes would be seen.")
    if "baseline_sha256" in report.parameters:
        said.append("Another model answered than in the baseline.")
    return " ".join(said)


def _signals(count: int) -> str:
    return f"{count:,} signal{'s' * (count != 1)}"


def status_text(signal: Signal) -> str:
    """Say whether a signal raised an alarm, and whether it could have."""
    enough = signal.status.replace("_", " ")
    if not signal.alarm:
        return enough
    return "ALARM" if signal.status == "ok" else f"ALARM, {enough}"


def format_effect(of: Effect) -> str:
    """Write an effect with the smallest that matters."""
    return (
        UNDEFINED if of.value is None else f"{format_brief(of.value)} ({format_brief(of.minimum)})"
    )


def format_sides(pair: Sequence[float]) -> str:
    """Write a number of the baseline and one of the current window."""
    return " / ".join(f"{one:,.0f}" for one in pair)


class MovedSignal(NamedTuple):
    """A signal in the part of the window that carries its alarm, in words."""

    signal: str
    by: str
    value: str
    n: str
    effect: str
    """There."""
    other: str
    """The effect in all other images."""
    p: str


def moved_signals(slices: Iterable[Slice]) -> list[MovedSignal]:
    """Say where signals moved, in the order of the slices."""
    return [
        MovedSignal(
            one_line(str(one.parameters.get("signal", one.type))),
            one_line(part.by),
            one_line(part.value),
            format_number(part.n),
            format_brief(one.value),
            format_brief(one.parameters.get("other")),
            format_brief(one.parameters.get("p_adjusted")),
        )
        for part in slices
        for one in part.metrics
    ]


def alarmed_signals(window: PastWindow) -> str:
    """Name the signals of a window that had an alarm."""
    found = [one_line(name) for name, one in window.signals.items() if one.alarm]
    more = len(found) - _MAX_ALARMS
    return ", ".join(found[:_MAX_ALARMS] + ([f"{more:,} more"] if more > 0 else []))


def estimated_metrics(metrics: Iterable[Metric]) -> list[Metric]:
    """Return what is estimated without a truth."""
    return [one for one in metrics if one.type.startswith("Estimated")]


def validity_notes(metrics: Iterable[Metric]) -> list[str]:
    """Say when estimates hold, each sentence once."""
    said = (one_line(str(one.parameters.get("valid", "")), 400) for one in metrics)
    return [one[0].upper() + one[1:] for one in dict.fromkeys(said) if one != "(empty)"]


def method_name(metric: Metric) -> str:
    """Name how an estimate was made."""
    return one_line(str(metric.parameters.get("method", "")).replace("_", " "))


EFFECT_DESCRIPTIONS = {
    "wasserstein_iqr": "how far values moved, in interquartile ranges",
    "total_variation": "share of values with another label",
    "energy_coefficient": "energy distance, as a share of the largest",
    "mmd_coefficient": "MMD, as a share of the largest",
}
"""What an effect is, in words."""
