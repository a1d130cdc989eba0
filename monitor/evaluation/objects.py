"""What all evaluations of objects share: COCO's numbers, from tables of predictions and truths.

Only the overlap of two objects differs between boxes, oriented boxes and masks; it is handed in.
"""

from typing import Any

from monitor.evaluation.average_precision import AREAS, MOST, THRESHOLDS
from monitor.evaluation.evaluators import Findings, Headline
from monitor.evaluation.matching import Doubles, Overlap, Predictions, Truths, match
from monitor.evaluation.ranked import rank_matches
from monitor.evaluation.state import State
from monitor.evaluation.weighted import twelve_numbers

AREA_NAMES = ("all", "small", "medium", "large")
"""Of `AREAS`."""

AVERAGED = "0.50:0.95"
"""How COCO writes the mean over its ten thresholds."""


class EvaluatedObjects:
    """Objects that a model found, beside those that are there.

    Args:
        state: With the tables `predictions` (image, label, score, area, number) and `truths` (image,
            label, area, crowd, difficult, number), and whatever columns the overlap needs.
        overlap: Of pairs, by the positions of their rows in the two tables, which share an image but not
            always a label. Of a crowd: the part of the prediction that lies in it.
        parameters: What the report says about the overlap, beside thresholds and rules.
    """

    def __init__(
        self, state: State, overlap: Overlap, *, parameters: dict[str, Any] | None = None
    ) -> None:
        self.state = state
        self.overlap = overlap
        self.parameters = parameters or {}
        found, there = state.tables["predictions"], state.tables["truths"]
        self.predictions = Predictions(
            found["image"], found["label"], found["score"], found["area"]
        )
        self.truths = Truths(
            there["image"], there["label"], there["area"], there["crowd"], there["difficult"]
        )

        matches = match(
            self.predictions,
            self.truths,
            overlap,
            thresholds=THRESHOLDS,
            areas=AREAS,
            most=MOST[-1],
        )
        self.ranking = rank_matches(
            self.predictions,
            self.truths,
            matches,
            areas=AREAS,
            shape=(len(state.labels), len(state.ids)),
        )

    def headlines(self, weights: Doubles) -> list[Headline]:
        """Compute COCO's twelve numbers for each weighting (B, I)."""
        values = twelve_numbers(self.ranking, weights)
        return [
            Headline(kind, parameters, values[at]) for at, (kind, parameters) in enumerate(twelve())
        ]

    def findings(self) -> Findings:
        """Compute everything else."""
        return Findings(parameters=self.parameters)


def twelve() -> list[tuple[str, dict[str, Any]]]:
    """Return the type and the parameters of COCO's twelve numbers, in its order."""

    def of(kind: str, iou: str | float, area: str, most: int) -> tuple[str, dict[str, Any]]:
        return kind, {"rule": "COCO", "iou": iou, "area": area, "max_dets": most, "label": None}

    sizes = AREA_NAMES[1:]
    return [
        *(of("AP", iou, "all", MOST[-1]) for iou in (AVERAGED, 0.5, 0.75)),
        *(of("AP", AVERAGED, area, MOST[-1]) for area in sizes),
        *(of("AR", AVERAGED, "all", most) for most in MOST),
        *(of("AR", AVERAGED, area, MOST[-1]) for area in sizes),
    ]
