"""Texts of drift reports for people: headline, verdict, what changed, signals, slices, estimates."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from quadriga.monitor.report.metric_texts import UNDEFINED, format_brief, format_number
from quadriga.monitor.report.schema import (
    Effect,
    Level,
    Metric,
    PastWindow,
    Report,
    Signal,
    Slice,
    effect_ratio,
    sorted_by_effect,
)
from quadriga.quoting import one_line

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


def is_moved(report: Report) -> bool:
    """Check whether anything moved: with an alarm, with too few images to judge, or in a part of the images."""
    return report.status == "drift" or bool(undecided_signals(report) or where_changed(report))


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

    part: Slice
    signal: str
    by: str
    value: str
    n: str
    effect: str
    """Effect in the slice."""
    other: str
    """Effect in all other images."""
    p: str
    since: str
    """Time from which on it changed there, in UTC; empty where that was not looked for."""


def moved_signals(slices: Iterable[Slice]) -> list[MovedSignal]:
    """Describe the signals that moved, in the order of the slices."""
    return [
        MovedSignal(
            part=slice_,
            signal=one_line(str(metric.parameters.get("signal", metric.type))),
            by=one_line(slice_.by),
            value=one_line(slice_.value),
            n=format_number(slice_.n),
            effect=format_brief(metric.value),
            other=format_brief(metric.parameters.get("other")),
            p=format_brief(metric.parameters.get("p_adjusted")),
            since=_minute(at) if (at := metric.parameters.get("at")) else "",
        )
        for slice_ in slices
        for metric in slice_.metrics
    ]


def alarmed_signals(window: PastWindow, titles: Mapping[str, str]) -> str:
    """Name the signals of a window with an alarm, by their titles as far as they have some."""
    names = [
        titles.get(name, one_line(name)) for name, signal in window.signals.items() if signal.alarm
    ]
    return ", ".join(_first(names, _MAX_ALARMS))


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


_EFFECT_DESCRIPTIONS = {
    "wasserstein_iqr": "how far values moved, in interquartile ranges",
    "total_variation": "share of values with another label",
    "energy_coefficient": "energy distance, as a share of the largest",
    "mmd_coefficient": "MMD, as a share of the largest",
}
"""Descriptions of effects, by name."""


def effect_kinds(signals: Iterable[Signal]) -> dict[str, dict[str, None]]:
    """Describe the effects that occur, each with the kinds of signals that have it."""
    kinds: dict[str, dict[str, None]] = {}
    for signal in signals:
        words = _EFFECT_DESCRIPTIONS.get(signal.effect.name, signal.effect.name)
        kinds.setdefault(words, {})[signal.kind] = None
    return kinds


MAX_IN_HEADLINE = 3
"""Maximum number of changes that the headline names."""
_MAX_UNDECIDED = 6
"""Maximum number of signals that the headline names if there are too few images to judge them."""
_MAX_PLACES = 3
"""Maximum number of slices that the headline names."""
_PRESENCE_SUFFIX = " (is there)"


class _Words(NamedTuple):
    """Title of a signal, and words for its two directions."""

    title: str
    falls: str = "lower"
    rises: str = "higher"


_WORDS = {
    "image.brightness": _Words("brightness", "darker", "brighter"),
    "image.contrast": _Words("contrast"),
    "image.blur": _Words("blur", "sharper", "softer"),
    "image.saturation": _Words("saturation", "paler", "more colourful"),
    "image.colour_a": _Words("colour from green to red", "greener", "redder"),
    "image.colour_b": _Words("colour from blue to yellow", "bluer", "yellower"),
    "image.dark": _Words("share of dark pixels"),
    "image.burnt": _Words("share of burnt-out pixels"),
    "predictions": _Words("objects an image", "fewer", "more"),
    "area": _Words("size of objects, as a share of the image", "smaller", "larger"),
    "aspect": _Words("width of objects over their height", "narrower", "wider"),
    "x": _Words("place of objects from left to right", "further left", "further right"),
    "y": _Words("place of objects from top to bottom", "further up", "further down"),
    "angle": _Words("angle of objects"),
    "mask_share": _Words("share of the image that is covered", "less", "more"),
    "score": _Words("score"),
    "margin": _Words("margin between the best two scores", "narrower", "wider"),
    "entropy": _Words("entropy of the scores"),
    "answer_length": _Words("length of answers", "shorter", "longer"),
    "latency_ms": _Words("latency in milliseconds", "faster", "slower"),
    "width": _Words("width of images in pixels", "narrower", "wider"),
    "height": _Words("height of images in pixels"),
    "bytes_per_pixel": _Words("bytes of a pixel in the file", "fewer", "more"),
}
_PREDICTION_SIGNALS = {
    "label", "score", "margin", "entropy", "predictions", "area", "aspect", "x", "y", "angle",
    "mask_share", "answer_length",
}  # fmt: skip
_DETAILS = {
    "area", "aspect", "x", "y", "angle", "margin", "entropy", "latency_ms", "bytes_per_pixel",
}  # fmt: skip
"""Signals that are named after all others: they follow from those, or say little to a person."""
_FILE_SIGNALS = {"width", "height", "bytes_per_pixel"}


class Change(NamedTuple):
    """Texts about how a signal changed."""

    signal: str
    """Name of the signal."""
    title: str
    direction: str = ""
    """Such as `darker`; empty if there is none."""
    before: str = ""
    after: str = ""
    began: str = ""
    """Place within the window where it changed, from `began_text`; empty if nowhere."""

    @property
    def is_known(self) -> bool:
        """Whether there are values before and after."""
        return bool(self.before and self.after)

    @property
    def name(self) -> str:
        """What changed, and in which direction if that is known."""
        return f"{self.title} ({self.direction})" if self.direction else self.title

    @property
    def sentence_part(self) -> str:
        """The change as a part of a sentence; where it began within the window, only that."""
        if self.began:
            return f"{self.name} {self.began}"
        if not self.is_known:
            return self.title
        direction = f" ({self.direction})" if self.direction else ""
        return f"{self.title} from {self.before} to {self.after}{direction}"


def changes(report: Report) -> list[Change]:
    """Describe the signals with an alarm, in the order of `alarms_in_reading_order`."""
    return [describe_change(signal, report) for signal in alarms_in_reading_order(report.signals)]


def alarms_in_reading_order(signals: Sequence[Signal]) -> list[Signal]:
    """Return the signals with an alarm: causes before effects, then embeddings and details, each by effect.

    An image changes the answers to it, so its signals come first, and what a client says of it last. A key without a
    value that both sides have tells the windows apart rather than the world, so it comes after all others.
    """
    alarms = [signal for signal in sorted_by_effect(signals) if signal.alarm]
    return sorted(alarms, key=_reading_order)


def _reading_order(signal: Signal) -> tuple[bool, bool, bool, int]:
    is_sent = signal.name.startswith("meta.")
    sides = zip(signal.histogram.baseline, signal.histogram.current, strict=False)
    names_window = is_sent and signal.kind == "categorical" and not any(map(all, sides))
    place = 2 if is_sent else 0 if _is_of_image(signal.name) or signal.name in _FILE_SIGNALS else 1
    is_detail = signal.name in _DETAILS
    return (
        names_window and bool(signal.histogram.edges),
        is_detail,
        signal.kind == "embedding",
        place,
    )


def signals_in_full(report: Report) -> list[Signal]:
    """Return the signals that a page shows in full: those with an alarm, and those that moved as far but cannot be judged; details come last."""
    signals = [*alarms_in_reading_order(report.signals), *undecided_signals(report)]
    return sorted(signals, key=lambda signal: signal.name in _DETAILS)


def both_values(signal: Signal, report: Report) -> Change:
    """Describe a signal on both sides, changed or not: the means of numbers, without a title, else as `describe_change`."""
    readable = readable_signal(signal, report)
    if readable.before is None or readable.after is None:
        return describe_change(signal, report)
    means = readable.before.mean, readable.after.mean
    return Change(signal.name, "", before=_number(*means), after=_number(*means[::-1]))


def missing_text(signal: Signal, report: Report) -> str:
    """Say which share of the images has no value of a signal, such as `0 % / 12 %`; empty where all have one."""
    windows = report.data.baseline, report.data.current
    totals = [0 if window is None else window.n for window in windows]
    if not all(totals) or not any(n < total for n, total in zip(signal.n, totals, strict=True)):
        return ""
    shares = (max(1 - n / total, 0.0) for n, total in zip(signal.n, totals, strict=True))
    return " / ".join(map(_percent, shares))


def caveats(report: Report) -> list[str]:
    """Return what limits the numbers of a report, a sentence each."""
    sentences = list(report.warnings)
    left_out = report.parameters.get("left_out", {})
    if filtered := [name for name, reason in left_out.items() if " by the filter" in reason]:
        names = _listed([signal_title(name) for name in filtered])
        sentences.append(f"Left out, as the filter chose the images by them: {names}.")
    if report.kind == "drift" and ", " in report.model.version:
        sentences.append(
            f"Versions {one_line(report.model.version, 100)} are compared together: what changed may be how much each of "
            "them answered. Compare times takes one version, too."
        )
    return sentences


def describe_change(signal: Signal, report: Report) -> Change:
    """Describe how a signal changed."""
    readable = readable_signal(signal, report)
    if signal.kind == "embedding":
        change = _embedding_change(signal, report)
    elif signal.kind == "categorical":
        change = _label_change(signal)
    else:
        words, is_spread = _words_of(signal.name, report), is_spread_change(signal)
        change = _number_change(readable, words, is_spread=is_spread)
    return change._replace(began=began_text(readable))


def is_of_files(report: Report | None) -> bool:
    """Check whether a report compares files, whose columns have the meaning that their owner gave them."""
    sides = ("current", "baseline")
    return report is not None and all(
        isinstance(report.parameters.get(side), str) for side in sides
    )


def readable_number(name: str, value: float) -> float:
    """Return a number of a signal on the scale that people read: blur, a logarithm, from 0 (sharp) to 100 (no edge at all)."""
    return round(_blur_percent(value), 1) if name == "image.blur" else value


def _blur_percent(value: float) -> float:
    # Measured ones are 0 at most; edges of a histogram may lie beyond, and stay apart.
    return 100 * math.exp(min(value, 100.0) / 2)


def readable_signal(signal: Signal, report: Report) -> Signal:
    """Return a signal with its numbers as people read them; a column of a file as it is."""
    if signal.name != "image.blur" or is_of_files(report):
        return signal

    def level(side: Level | None) -> Level | None:
        return side and Level(*map(_blur_percent, (side.mean, side.low, side.high)))

    def mean(value: float | None) -> float | None:
        return None if value is None else _blur_percent(value)

    began, histogram = signal.began, signal.histogram
    return structs.replace(
        signal,
        before=level(signal.before),
        after=level(signal.after),
        began=began and structs.replace(began, before=mean(began.before), after=mean(began.after)),
        histogram=structs.replace(
            histogram, edges=[_blur_percent(float(edge)) for edge in histogram.edges]
        ),
    )


def signal_title(name: str, report: Report | None = None) -> str:
    """Name a signal in words, such as `brightness` for `image.brightness`; a column of a file by its name."""
    return _words_of(name, report).title


def _words_of(name: str, report: Report | None) -> _Words:
    words = None if is_of_files(report) else _WORDS.get(name)
    return words or _Words(one_line(name.removeprefix("meta.")))


def signal_titles(names: Iterable[str], report: Report | None = None) -> dict[str, str]:
    """Name signals that stand together in words; those of one title, such as `score` and `meta.score`, by their names."""
    titles = {name: signal_title(name, report) for name in names}
    counts = Counter(titles.values())
    return {name: title if counts[title] == 1 else one_line(name) for name, title in titles.items()}


def headline(report: Report) -> str:
    """Say in one sentence what changed; an empty text for an evaluation."""
    if report.kind == "evaluation" or report.status == "error":
        return ""
    named, where = changes(report), where_changed(report)
    if (report.status == "insufficient" and not is_moved(report)) or not report.signals:
        return "There are too few images to say whether anything changed."
    if not named:
        return _headline_without_alarm(report)
    known = [change for change in named if change.is_known] or named
    if where:
        return f"{where} Over all images: {_listed([change.name for change in known[:MAX_IN_HEADLINE]])}."
    parts = [change.sentence_part for change in known[:MAX_IN_HEADLINE]]
    alarms = [signal for signal in report.signals if signal.alarm]
    changed = f"Changed: {_listed(parts)}{_place(report, alarms, ', most where')}."
    causes = [signal for signal in undecided_signals(report) if _is_of_image(signal.name)]
    if causes and all(signal.name in _DETAILS for signal in alarms):
        names = _some_titles(report, causes, MAX_IN_HEADLINE)
        place = _place(report, causes, ", most where")
        changed = f"Moved, with too few independent images to judge: {names}{place}. {changed}"
    in_parts, _ = _maybe_chance(report)
    if not in_parts:
        return changed
    return f"{changed} Also {_some_titles(report, in_parts, MAX_IN_HEADLINE)}{_place(report, in_parts, ' where')}."


def where_changed(report: Report) -> str:
    """Say in a sentence what changed in a part of the images, such as one camera, from when on; empty if nowhere.

    Signals whose values depend on each other say nothing here: each camera has its own daylight. Causes come before effects,
    as in `alarms_in_reading_order`. The time of an answer depends on the server alone.
    """
    located = changes_in_parts(report.signals, report.slices)
    if not located:
        return ""
    located.sort(key=lambda entry: _reading_order(entry[0]))
    signal, first, metric = located[0]
    parts = [
        _change_of_slice(other, of_slice, report).sentence_part
        for other, slice_, of_slice in located
        if slice_ is first
    ]
    values = [
        one_line(slice_.value)
        for other, slice_, _ in located
        if other is signal and slice_.by == first.by
    ]
    by, at = one_line(first.by.removeprefix("meta.")), metric.parameters["at"]
    since = f" from {_minute(at)} UTC on" if at else ""
    images = f" ({metric.n:,} images)" if len(values) == 1 else ""
    places = _listed(_first(values, _MAX_PLACES))
    return f"Where {by} is {places}{since}{images}: {_listed(parts[:MAX_IN_HEADLINE])}."


def changes_in_parts(
    signals: Iterable[Signal], slices: Iterable[Slice]
) -> list[tuple[Signal, Slice, Metric]]:
    """Return which signals changed in a part of the images from some time on, without those of which `undecided_signals` tells."""
    by_name = {
        signal.name: signal
        for signal in signals
        if signal.name != "latency_ms" and not is_undecided(signal)
    }
    return [
        (by_name[metric.parameters["signal"]], slice_, metric)
        for slice_ in slices
        for metric in slice_.metrics
        if "at" in metric.parameters and metric.parameters.get("signal") in by_name
    ]


def _change_of_slice(signal: Signal, metric: Metric, report: Report) -> Change:
    """Describe how a signal changed in a slice, by the parameters of its metric."""
    before, after = metric.parameters["before"], metric.parameters["after"]
    if "label" in metric.parameters:
        return _share_change(signal.name, str(metric.parameters["label"]), before, after)
    levels = Level(before, before, before), Level(after, after, after)
    of_slice = readable_signal(structs.replace(signal, before=levels[0], after=levels[1]), report)
    return _number_change(of_slice, _words_of(signal.name, report), is_spread=False)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _first(names: list[str], limit: int) -> list[str]:
    """Return the first of some names, and how many more there are."""
    hidden = len(names) - limit
    return [*names[:limit], *([f"{hidden:,} more"] if hidden > 0 else [])]


def _headline_without_alarm(report: Report) -> str:
    """Say which signals moved without an alarm: with too few independent images to judge, and where, or perhaps by chance."""
    if where := where_changed(report):
        return f"{where} No alarm over all images."
    parts = []
    if signals := undecided_signals(report):
        names = _some_titles(report, signals, _MAX_UNDECIDED)
        where = _place(report, signals, ", most where")
        began = began_text(readable_signal(signals[0], report))
        if began and len(signals) > 1:
            began = f"{signal_title(signals[0].name, report)} {began}"
        parts.append(
            f"too few independent images to say anything about {names}, which moved{where}{began and ', '}{began}"
        )
    for signals in filter(None, _maybe_chance(report)):
        names = _some_titles(report, signals, MAX_IN_HEADLINE)
        place = _place(report, signals, " over all images, but not where")
        parts.append(f"{names} moved, which may be chance{place}")
    return f"No alarm; {'; '.join(parts)}." if parts else "Nothing changed."


def _maybe_chance(report: Report) -> tuple[list[Signal], list[Signal]]:
    """Return the signals that moved in a part of the window, while all of it shows no more than chance may, and those that did not."""
    in_parts: list[Signal] = []
    others: list[Signal] = []
    for signal in maybe_chance_signals(report):
        (in_parts if _slices_of(report, [signal]) else others).append(signal)
    return in_parts, others


def _some_titles(report: Report, signals: Sequence[Signal], limit: int) -> str:
    return _listed(_first([signal_title(signal.name, report) for signal in signals], limit))


def explanation(report: Report) -> str:
    """Say how many signals changed, what was compared, and what to look at first."""
    if report.kind == "evaluation" or report.status == "error":
        return ""
    baseline = report.data.baseline
    counts = f"{report.data.current.n:,} images with {baseline.n if baseline else 0:,}"
    sentences = [verdict(report), f"Compared: {counts} of the baseline."]
    alarms = {signal.name for signal in report.signals if signal.alarm}
    if alarms and not is_of_files(report):
        open_signals = [*undecided_signals(report), *maybe_chance_signals(report)]
        undecided = {signal.name for signal in open_signals}
        sentences.append(_what_to_look_at(alarms, undecided))
    return " ".join(sentences)


def _what_to_look_at(names: set[str], undecided: set[str]) -> str:
    """Say where to look first, by which kinds of signals changed, and of which that moved nothing can be said."""
    has_image = any(map(_is_of_image, names))
    has_file = bool(names & _FILE_SIGNALS)
    has_prediction = bool(names & _PREDICTION_SIGNALS)
    is_image_open = any(_is_of_image(name) or name in _FILE_SIGNALS for name in undecided)
    is_answer_open = bool(undecided & _PREDICTION_SIGNALS)
    if has_image:
        others = (
            "it cannot be said whether the answers did" if is_answer_open else "the answers did not"
        )
        answers = "and so did the answers" if has_prediction else others
        return f"The images themselves changed, {answers}: look at the light, the lens and what the camera sees."
    if has_file:
        return "The files of the images changed: look at the camera's resolution and compression."
    if has_prediction and is_image_open:
        return "The answers changed, and it cannot be said whether the images did: look at both, and at the model."
    if has_prediction:
        return "The images are as usual but the answers changed: look at what the images show, and at the model."
    words = ["images"] * is_image_open + ["answers"] * is_answer_open
    return _what_is_beside(" and ".join(words), is_time_alone=names == {"latency_ms"})


def _what_is_beside(undecided: str, *, is_time_alone: bool) -> str:
    """Say where to look if neither images nor answers raised an alarm; `undecided` names those of which nothing can be said."""
    if undecided:
        changed = "The time that answers take" if is_time_alone else "What is sent with the images"
        return f"{changed} changed, and it cannot be said whether the {undecided} did: look at the signals that moved, too."
    if is_time_alone:
        return "Images and answers are as usual; only the time that they take changed: look at the server."
    return "Images and answers are as usual; what is sent with the images changed: look at who sends them."


def _is_of_image(name: str) -> bool:
    return name.startswith("image.") or name == "embedding"


def _place(report: Report, signals: Iterable[Signal], words: str) -> str:
    """Name the parts of the window, by one key, in which one of some signals moved more than in the rest, after some words."""
    slices = _slices_of(report, signals)
    if report.kind != "drift" or not slices:
        return ""
    first = slices[0]
    values = dict.fromkeys(one_line(slice_.value) for slice_ in slices if slice_.by == first.by)
    places = _listed(_first([*values], _MAX_PLACES))
    return f"{words} {one_line(first.by.removeprefix('meta.'))} is {places}"


def _slices_of(report: Report, signals: Iterable[Signal]) -> list[Slice]:
    names = {signal.name for signal in signals}
    return [
        slice_
        for slice_ in report.slices
        if any(metric.parameters.get("signal") in names for metric in slice_.metrics)
    ]


def _number_change(signal: Signal, words: _Words, *, is_spread: bool) -> Change:
    before, after = signal.before, signal.after
    if before is None or after is None:
        return Change(signal.name, words.title)
    difference = after.mean - before.mean
    if is_spread:
        return Change(
            signal.name,
            f"spread of {words.title}",
            "wider" if _range(after) >= _range(before) else "narrower",
            before=_number(_range(before), _range(after)),
            after=_number(_range(after), _range(before)),
        )
    return Change(
        signal.name,
        words.title,
        words.rises if difference > 0 else words.falls,
        before=_number(before.mean, after.mean),
        after=_number(after.mean, before.mean),
    )


def is_spread_change(signal: Signal) -> bool:
    """Check whether the values of a numeric signal spread or gathered, rather than moved to one side."""
    if signal.before is None or signal.after is None or signal.shift is None:
        return False
    return abs(signal.after.mean - signal.before.mean) < signal.shift / 2


def _range(level: Level) -> float:
    """Return how far the middle four fifths of the values reach."""
    return level.high - level.low


def _number(value: float, other: float) -> str:
    """Format a number with as many digits as tell it from another."""
    difference = abs(value - other)
    for digits in range(4):
        if difference >= 5 * 10.0**-digits:
            return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return format_brief(value)


def _label_change(signal: Signal) -> Change:
    """Describe the label whose share changed most."""
    shares = [
        [count / max(sum(side), 1) for count in side]
        for side in (signal.histogram.baseline, signal.histogram.current)
    ]
    if not signal.histogram.edges or not all(shares):
        return Change(signal.name, one_line(signal.name))
    gains = [share - share_before for share_before, share in zip(*shares, strict=True)]
    index = max(range(len(gains)), key=lambda position: abs(gains[position]))
    if signal.name.endswith(_PRESENCE_SUFFIX):
        index = [str(edge) for edge in signal.histogram.edges].index("yes")
    label = str(signal.histogram.edges[index])
    return _share_change(signal.name, label, shares[0][index], shares[1][index])


def _share_change(name: str, label: str, before: float, after: float) -> Change:
    """Describe how the share of a label of a signal changed."""
    if name.endswith(_PRESENCE_SUFFIX):
        title = f"share of images with {one_line(name.removesuffix(_PRESENCE_SUFFIX))}"
    else:
        title = f"share of the {one_line(name.removeprefix('meta.'))} {one_line(label)}"
    return Change(
        name,
        title,
        "more" if after > before else "fewer",
        before=_percent(before),
        after=_percent(after),
    )


def _embedding_change(signal: Signal, report: Report) -> Change:
    title = "share of images unlike the baseline"
    share = report.unlike_share
    if share is None or share <= 0.05:
        return Change(signal.name, "what the images show, as the model sees it")
    return Change(signal.name, title, "more", before="5 %", after=_percent(share))


def format_p_value(value: float | None) -> str:
    """Format a p-value with its sign of comparison, such as `p < 0.001`."""
    is_tiny = value is not None and value < 0.001
    text = "p < 0.001" if is_tiny else f"p {format_brief(value)}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _percent(share: float) -> str:
    percent = 100 * share
    return (
        f"{percent:.1f} %" if 0 < percent < 10 and percent != round(percent) else f"{percent:.0f} %"
    )
