"""Image classification: one label for each image, or any number of them.

A set of images is multi-label as soon as one image has not exactly one true label.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from monitor.evaluation.arrays import Integers
from monitor.evaluation.evaluators import Evaluated, decode
from monitor.evaluation.multi_label import MultiLabel
from monitor.evaluation.single_label import SingleLabel
from monitor.evaluation.state import EvaluatedImage, Labels, Number, State, Table


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
        """Read scores and true labels.

        Raises:
            EvaluationError: They are something else.
        """
        answers = [
            decode(_ANSWERS, one.predictions, f"image {one.id!r}: predictions") for one in images
        ]
        truths = [
            decode(_TRUTHS, one.ground_truth, f"image {one.id!r}: ground_truth") for one in images
        ]
        score = np.array([one.score for some in answers for one in some], np.float64)
        image, label = _columns(answers, labels)
        number = np.arange(len(image)) - np.searchsorted(image, image)
        kept = _once(image, label, np.lexsort((-score, label, image)))
        true_image, true_label = _columns(truths, labels)
        true = _once(true_image, true_label, np.lexsort((true_label, true_image)))
        return {
            "predictions": {
                "image": image[kept],
                "label": label[kept],
                "score": score[kept],
                "number": number[kept],
            },
            "truths": {"image": true_image[true], "label": true_label[true]},
        }

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state, by the one true label of each image or by all of its labels."""
        truths = np.bincount(state.tables["truths"]["image"], minlength=len(state.ids))
        return SingleLabel(state) if (truths == 1).all() else MultiLabel(state)


def _columns(
    lists: Sequence[Sequence[_Answer | _Truth]], labels: Labels
) -> tuple[Integers, Integers]:
    """Return the position of the image and the label of each."""
    image = np.repeat(np.arange(len(lists)), [len(some) for some in lists])
    label = np.array([labels[one.label] for some in lists for one in some], np.int64)
    return image.astype(np.int64), label


def _once(image: Integers, label: Integers, order: Integers) -> Integers:
    """Keep the first, in an order by image and label, of equal rows; ascending."""
    image, label = image[order], label[order]
    new = (np.diff(image, prepend=-1) != 0) | (np.diff(label, prepend=-1) != 0)
    return np.sort(order[new])
