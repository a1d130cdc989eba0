"""Image classification: one label for each image, or any number of them.

A set of images is multi-label as soon as one image has not exactly one true label.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from monitor.evaluation.arrays import Doubles
from monitor.evaluation.evaluators import Evaluated
from monitor.evaluation.multi_label import MultiLabel
from monitor.evaluation.single_label import SingleLabel
from monitor.evaluation.state import EvaluatedImage, Labels, Number, State, Table
from monitor.evaluation.wire_tables import read_lists


class _Answer(msgspec.Struct, frozen=True):
    label: str
    score: Number


class _Truth(msgspec.Struct, frozen=True):
    label: str


_ANSWERS = msgspec.json.Decoder(list[_Answer])
_TRUTHS = msgspec.json.Decoder(list[_Truth])


class Classification:
    """Evaluates `IMAGE_CLASSIFICATION`.

    Tables: "predictions" with image, label, score and number, the position in the image's answer, in the
    order of the answer; "truths" with image and label. A label that an image has twice counts once, with
    its higher score.
    """

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read scores and true labels; see `Evaluator.tables`."""
        found = read_lists(images, "predictions", _ANSWERS, labels)
        there = read_lists(images, "ground_truth", _TRUTHS, labels)
        answers = {**found.table, "score": found.numbers("score")[:, 0]}
        return {
            "predictions": _once(answers, answers["score"]),
            "truths": _once({name: there.table[name] for name in ("image", "label")}),
        }

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state, by the one true label of each image or by all of its labels."""
        truths = np.bincount(state.tables["truths"]["image"], minlength=len(state.ids))
        return SingleLabel(state) if (truths == 1).all() else MultiLabel(state)


def _once(table: Table, score: Doubles | None = None) -> Table:
    """Keep of rows of one image and label the one with the highest score; of equal ones the first."""
    image, label = table["image"], table["label"]
    falling = np.zeros(len(image)) if score is None else -score
    order = np.lexsort((falling, label, image))
    new = (np.diff(image[order], prepend=-1) != 0) | (np.diff(label[order], prepend=-1) != 0)
    kept = np.sort(order[new])
    return {name: column[kept] for name, column in table.items()}
