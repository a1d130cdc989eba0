"""What all evaluations of objects share: COCO's numbers, from tables of predictions and truths.

Only the overlap of two objects differs between boxes, oriented boxes and masks; it is handed in.
"""

import numpy as np

from quadriga.monitor.evaluation.evaluators import Findings, Headline
from quadriga.monitor.evaluation.labels.calibration import BINS, RULE, Reliability
from quadriga.monitor.evaluation.objects.average_precision import (
    AREA_NAMES,
    AREAS,
    AVERAGED,
    MOST,
    THRESHOLDS,
    curves,
    label_metrics,
    label_parameters,
    precision_curves,
    twelve,
)
from quadriga.monitor.evaluation.objects.matching import IGNORED, RIGHT, Overlap, match, near_pairs
from quadriga.monitor.evaluation.objects.object_confusion import (
    SCORE,
    Confused,
    confused,
    confusion,
)
from quadriga.monitor.evaluation.objects.operating_points import at_thresholds
from quadriga.monitor.evaluation.objects.tide import FAR, KINDS, NEAR, Errors, errors, worth
from quadriga.monitor.evaluation.objects.weighted import twelve_numbers
from quadriga.monitor.evaluation.reporting import number
from quadriga.monitor.evaluation.state import State, counted
from quadriga.monitor.report.schema import Metric
from quadriga.tasks.arrays import BoolArray, Float64Array


class EvaluatedObjects:
    """Objects that a model found, beside those that are there.

    Args:
        state: With the tables of `quadriga.monitor.evaluation.item_tables`, and what the overlap needs.
        overlap: Of pairs, by the positions of their rows in the two tables, which share an image but not
            always a label. Of a crowd: the part of the prediction that lies in it.
        kind: What the report calls the overlap.
    """

    def __init__(self, state: State, overlap: Overlap, kind: str = "box") -> None:
        self.state, self.overlap, self.kind = state, overlap, kind
        self.predictions, self.truths = state.tables["predictions"], state.tables["truths"]
        self.ranking = match(
            self.predictions,
            self.truths,
            overlap,
            thresholds=THRESHOLDS,
            areas=AREAS,
            most=MOST[-1],
            shape=(len(state.labels), len(state.ids)),
        )

    def headlines(self, weights: Float64Array) -> list[Headline]:
        """Compute COCO's twelve numbers for each weighting (B, I), and each label's average precision."""
        values, by_label = twelve_numbers(self.ranking, weights)
        labels = (("AP", label_parameters(AVERAGED, label)) for label in self.state.labels)
        named = zip([*twelve(), *labels], [*values, *by_label], strict=True)
        return [Headline(*name, of) for name, of in named]

    def findings(self) -> Findings:
        """Compute everything else, over all images."""
        labels, ranking = self.state.labels, self.ranking
        seen = np.isin(np.arange(len(labels)), self.truths["label"])
        to_find = ranking.to_find.sum(axis=1)[: len(labels)].astype(np.int64)
        drawn = curves(ranking)
        kept = np.flatnonzero((ranking.outcome[0, 0] != IGNORED) & seen[ranking.label])
        right, score = ranking.outcome[0, 0, kept] == RIGHT, ranking.score[kept]
        reliability = Reliability(ranking.image[kept], score, right)
        ones = np.ones((1, len(self.state.ids)))
        calibration = zip(("ECE", "MCE"), reliability.errors(ones), strict=True)

        near = near_pairs(
            {"image": ranking.image},
            self.truths,
            lambda prediction, truth: self.overlap(ranking.row[prediction], truth),
            FAR,
        )
        mistakes = errors(ranking, self.truths, near)
        overlap = near._replace(prediction=ranking.row[near.prediction]).overlaps()
        sure = ranking.row[ranking.score >= SCORE]
        pairs = confused(self.predictions, self.truths, sure, overlap)
        excluded = counted(  # from all numbers but the confusion
            unseen_label=int(np.count_nonzero(~seen[self.predictions["label"]])),
            over_max_dets=len(self.predictions["label"]) - len(ranking.row),
        )
        return Findings(
            metrics=[
                *label_metrics(drawn, labels, to_find),
                *at_thresholds(labels, ranking.label[kept], score, right, to_find),
                *(
                    Metric(kind, number(value[0]), {"bins": BINS, "rule": RULE, "iou": 0.5})
                    for kind, value in calibration
                ),
            ],
            curves={"pr": precision_curves(drawn, labels), **reliability.curves(ones)},
            confusion=confusion(self.state, pairs),
            errors_tide=worth(ranking, self.truths, mistakes),
            badness=self._badness(pairs, mistakes),
            parameters={
                "overlap": self.kind,
                "rule": "COCO",
                "iou": THRESHOLDS.round(2).tolist(),
                "max_dets": MOST[-1],
                "areas_px": dict(zip(AREA_NAMES, AREAS.tolist(), strict=True)),
                "tide": {"iou": NEAR, "background_iou": FAR},
            },
            excluded=excluded,
        )

    def _badness(self, pairs: Confused, mistakes: Errors) -> dict[str, Float64Array]:
        """Add up by image what the confusion matrix has beside its diagonal, by score."""
        rows, truth = pairs.prediction, pairs.truth
        kind = np.full(len(self.predictions["label"]) + 1, -1, np.int64)  # the last is for -1
        kind[self.ranking.row] = mistakes.kind
        loose = (kind[rows] == KINDS.index("Loc")) & (truth < 0)
        predicted, true = self.predictions["label"], self.truths["label"]
        other = np.append(predicted, -1)[rows] != np.append(true, -1)[truth]

        def per_image(which: BoolArray) -> Float64Array:
            of = rows[which & (rows >= 0)]
            image, score = self.predictions["image"][of], self.predictions["score"][of]
            return np.bincount(image, score, len(self.state.ids)).astype(np.float64)

        missed = self.truths["image"][truth[rows < 0]]
        return {
            "miss": np.bincount(missed, minlength=len(self.state.ids)).astype(np.float64),
            "false_positive": per_image((truth < 0) & ~loose),
            "wrong_label": per_image((truth >= 0) & other),
            "low_overlap": per_image(loose),
        }
