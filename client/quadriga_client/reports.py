"""Reports of evaluations and drift as the server's JSON, with their numbers by name."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import InputError, load_package

_ALIASES = {"map": "ap", "mar": "ar"}
_SHOWN_PARAMETERS = ("label", "of", "average", "k", "iou", "score", "area")


@dataclass(frozen=True, slots=True, repr=False)
class Metric:
    """One number of a report; `float(metric)` is its value."""

    type: str
    value: float | None
    """None if there was nothing to find or nothing to count."""
    ci95: tuple[float | None, float | None] | None = None
    """Interval of 95 %; None where there is none."""
    n: int | None = None
    """Number of images, objects or pixels that it is computed from."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What it is a metric of, such as `label`, `iou` or `average`."""

    def __float__(self) -> float:
        return float("nan") if self.value is None else float(self.value)

    def __str__(self) -> str:
        pairs = ((name, self.parameters.get(name)) for name in _SHOWN_PARAMETERS)
        shown = ", ".join(f"{name}={value}" for name, value in pairs if value is not None)
        name = f"{self.type}[{shown}]" if shown else self.type
        value = "—" if self.value is None else f"{self.value:.4g}"
        return f"{name} {value}{_interval(self.ci95)}"

    def __repr__(self) -> str:
        return f"<Metric {self}>"


class Report(dict[str, Any]):
    """A report of an evaluation or of a drift comparison: its JSON, as a dict."""

    @property
    def metrics(self) -> list[Metric]:
        """All metrics: the headlines first, then those of single labels and thresholds."""
        return [_metric(row) for row in self.get("metrics") or ()]

    def metric(self, type_: str, **parameters: Any) -> Metric:
        """Return a metric: of several of a type the first of all labels together, which is the headline.

        Args:
            type_: Type as the report has it, such as `F1` or `AP`, in any case; `mAP` is `AP`.
            parameters: What it is to be a metric of, such as `label="star"` or `iou=0.5`.

        Raises:
            InputError: The report has no such metric.
        """
        wanted = _ALIASES.get(type_.lower(), type_.lower())
        of_type = [metric for metric in self.metrics if metric.type.lower() == wanted]
        of_type.sort(key=_has_label)  # the order of others stays
        for metric in of_type:
            if all(metric.parameters.get(name) == value for name, value in parameters.items()):
                return metric
        if of_type:
            raise InputError(
                f"expected {type_} of the report to have {parameters}, got "
                f"{', '.join(str(metric.parameters) for metric in of_type[:5])}"
            )
        types = dict.fromkeys(metric.type for metric in self.metrics)
        raise InputError(
            f"expected a metric of the report, got {type_!r}: it has {', '.join(types) or 'none'}"
        )

    @property
    def summary(self) -> str:
        """The report in a few lines: what it is of, its warnings, and the headlines or the signals."""
        return "\n".join(self._lines())

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"<Report {self.get('id', '?')}: {next(self._lines())}>"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each metric, or for each signal of drift.

        The columns of metrics are `type`, `value`, `low` and `high` of the interval, `n`, `unit` of `n` if it is not images, and one
        for each parameter, such as `label`; those of signals are `name`, `alarm`, `status`, `effect`, `value`, `minimum`, `p_adjusted`, `n_baseline` and
        `n_current`.

        Raises:
            MissingPackage: pandas is not installed.
        """
        pandas = load_package("pandas", "to_pandas()")
        if self.get("kind") == "drift":
            signals = [_signal_row(signal) for signal in self.get("signals") or ()]
            return pandas.DataFrame(signals, columns=list(_signal_row({})))
        rows = [_metric_row(metric) for metric in self.metrics]
        names = [*_METRIC_COLUMNS, *(name for row in rows for name in row)]
        return pandas.DataFrame(rows, columns=list(dict.fromkeys(names)))

    def _lines(self) -> Iterator[str]:
        model, data = self.get("model") or {}, self.get("data") or {}
        images = (data.get("current") or {}).get("n", 0)
        name = f"{model.get('name', '')}@{model.get('version', '')}".rstrip("@")
        yield f"{self.get('kind', 'report')} of {name or '?'}: {self.get('status', '?')}, {images} image{'' if images == 1 else 's'}"
        excluded = [f"{count} {reason}" for reason, count in (data.get("excluded") or {}).items() if count]  # fmt: skip
        if excluded:
            yield f"left out: {', '.join(excluded)}"
        yield from (f"warning: {warning}" for warning in self.get("warnings") or ())
        yield from map(str, self._headlines())
        for signal in self.get("signals") or ():
            row = _signal_row(signal)
            value = "—" if row["value"] is None else f"{row['value']:.3g}"
            state = "alarm" if row["alarm"] else row["status"]
            yield f"{row['name']} {state}: {row['effect']} {value}"

    def _headlines(self) -> list[Metric]:
        """Return the first metric of each type of all labels together that has a meaning for this model."""
        first: dict[str, Metric] = {}
        for row, metric in zip(self.get("metrics") or (), self.metrics, strict=True):
            # The best k of no more than k labels: nothing can be measured.
            is_beyond = metric.type == "TopKAccuracy" and metric.value is None
            if is_beyond and not row.get("reason"):
                continue
            if not _has_label(metric) and metric.type != "Counts":
                first.setdefault(metric.type, metric)
        return list(first.values())


_METRIC_COLUMNS = ("type", "value", "low", "high", "n")


def _metric(row: dict[str, Any]) -> Metric:
    interval, of = row.get("ci95"), row.get("parameters") or {}
    ci95 = None if interval is None else (interval[0], interval[1])
    return Metric(row["type"], row.get("value"), ci95, n=row.get("n"), parameters=of)


def _has_label(metric: Metric) -> bool:
    return metric.parameters.get("label") is not None


def _interval(ci95: tuple[float | None, float | None] | None) -> str:
    if ci95 is None:
        return ""
    low, high = ("—" if end is None else f"{end:.4g}" for end in ci95)
    return f" ({low} to {high})"


def _metric_row(metric: Metric) -> dict[str, Any]:
    low, high = metric.ci95 or (None, None)
    row = {"type": metric.type, "value": metric.value, "low": low, "high": high, "n": metric.n}
    further = {"unit" if name == "n" else name: value for name, value in metric.parameters.items()}
    return row | further


def _signal_row(signal: dict[str, Any]) -> dict[str, Any]:
    effect, counts = signal.get("effect") or {}, signal.get("n") or (None, None)
    return {
        "name": signal.get("name"),
        "alarm": bool(signal.get("alarm")),
        "status": signal.get("status", "ok"),
        "effect": effect.get("name"),
        "value": effect.get("value"),
        "minimum": effect.get("minimum"),
        "p_adjusted": signal.get("p_adjusted"),
        "n_baseline": counts[0],
        "n_current": counts[1],
    }
