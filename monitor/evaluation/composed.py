"""Several evaluations of the same images in one report."""

from collections.abc import Sequence
from typing import Any

from monitor.evaluation.arrays import Doubles
from monitor.evaluation.evaluators import Evaluated, Findings, Headline


class Composed:
    """Evaluations of the same images as one `Evaluated`; what is first stands first."""

    def __init__(self, parts: Sequence[Evaluated]) -> None:
        self._parts = parts

    def headlines(self, weights: Doubles) -> list[Headline]:
        """Compute the headlines of all parts."""
        return [one for part in self._parts for one in part.headlines(weights)]

    def findings(self) -> Findings:
        """Put the findings of all parts together; of each kind of confusion there is the first."""
        parts = [part.findings() for part in self._parts]
        curves: dict[str, list[dict[str, Any]]] = {}
        for part in parts:
            for kind, drawn in part.curves.items():
                curves.setdefault(kind, []).extend(drawn)
        return Findings(
            metrics=[metric for part in parts for metric in part.metrics],
            curves=curves,
            confusion=next((part.confusion for part in parts if part.confusion), None),
            confusion_pixels=next(
                (part.confusion_pixels for part in parts if part.confusion_pixels), None
            ),
            errors_tide={name: dap for part in parts for name, dap in part.errors_tide.items()},
            badness={reason: bad for part in parts for reason, bad in part.badness.items()},
            parameters={name: value for part in parts for name, value in part.parameters.items()},
            excluded={reason: count for part in parts for reason, count in part.excluded.items()},
        )
