"""An evaluator for tests: an image is correct if its predicted labels equal its annotated labels."""

import msgspec
import numpy as np

from quadriga.monitor.evaluation.evaluators import EvaluationDetails, Headline
from quadriga.monitor.evaluation.metric_settings import DEFAULT_SETTINGS
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationError
from tests.unit.monitor.evaluation.evaluation_images import wire_image


def labelled_image(number, found="a", there="a", **more) -> EvaluatedImage:
    """Return an image whose labels are single letters; `there` is None for an image without ground truth."""
    predictions = [{"label": label, "score": 0.5} for label in found]
    truth = None if there is None else [{"label": label} for label in there]
    return wire_image(number, predictions, truth, 4, 3, **more)


class LabelEvaluator:
    """Evaluator that compares sets of labels; see `quadriga.monitor.evaluation.evaluators.Evaluator`."""

    settings = ()

    def tables(self, images, labels):
        rows = [
            (at, labels[item["label"]], kind)
            for at, image in enumerate(images)
            for kind, data in enumerate((image.predictions, image.ground_truth))
            for item in self.read(data)
        ]
        image, label, kind = np.array(rows, np.int64).reshape(-1, 3).T
        return {"rows": {"image": image, "label": label, "is_truth": kind.astype(bool)}}

    def read(self, data):
        items = msgspec.json.decode(data)
        if any("label" not in item for item in items):
            raise EvaluationError("expected a label, got none")
        return items

    def evaluate(self, state, _settings=DEFAULT_SETTINGS):
        rows = state.tables["rows"]
        is_right = np.ones(len(state.ids))
        for index in range(len(is_right)):
            is_of_image = rows["image"] == index
            predicted, true = (
                sorted(rows["label"][is_of_image & (rows["is_truth"] == kind)].tolist())
                for kind in (0, 1)
            )
            is_right[index] = predicted == true
        return LabelMetrics(is_right)


class LabelMetrics:
    def __init__(self, right):
        self.right = right

    def headlines(self, weights):
        assert weights.dtype == np.float64
        with np.errstate(invalid="ignore"):
            share = weights @ self.right / weights.sum(axis=1)
        return [
            Headline("Accuracy", {}, share),
            Headline("Wrong", {"label": None}, weights @ (1 - self.right)),
        ]

    def details(self):
        return EvaluationDetails(
            badness={"wrong_label": 1 - self.right},
            parameters={"rule": "small"},
            excluded={"unseen_label": 0},
        )
