"""The glossary of the console, and the texts of its search. Plain words, present tense; the thing, then the number."""

from collections.abc import Mapping
from typing import NamedTuple


class Word(NamedTuple):
    """A word of the console's pages."""

    name: str
    meaning: str
    glossary: bool = False
    """Whether the meaning begins with what docs/glossary.md says of the word."""


_QUALITY = {
    "ap": Word("AP", "Average precision: the area below the curve of precision over recall, from 0 to 1; 1 is best. Of objects the mean over the overlaps "
               "(IoU) 0.50 to 0.95, if no other is named."),
    "ar": Word("AR", "Average recall: the share of all objects that are found if so many predictions an image count, as a mean over the overlaps (IoU) 0.50 to 0.95."),
    "iou": Word("IoU", "How much two regions share: intersection over union, from 0 (apart) to 1 (the same). A prediction matches an object from some IoU on."),
    "precision": Word("Precision", "Of what was predicted, the share that is true."),
    "recall": Word("Recall", "Of what is true, the share that was found."),
    "f1": Word("F1", "One number for precision and recall: their harmonic mean, from 0 to 1."),
    "interval": Word("95 % interval", "The values that these images leave possible, as they are a sample: of 100 such intervals 95 hold the true value. If the intervals of two values do not overlap, "
                     "they differ."),
    "score": Word("score", "How sure a model is of a prediction; usually 0 to 1.", glossary=True),
    "ground-truth": Word("ground truth", "What is true of an image, as people or other sources say: a list of annotations.", glossary=True),
    "evaluation": Word("evaluation", "Measuring how good predictions are against ground truth.", glossary=True),
    "slice": Word("slice", "The images that share one value of a metadata key, a time or a size, or that a filter finds.", glossary=True),
    "confusion": Word("Confusion", "How often each label that is true was predicted as each label. The diagonal is right."),
}  # fmt: skip
_DRIFT = {
    "drift": Word("drift", "A change in what a model sees or predicts, larger than chance explains.", glossary=True),
    "baseline": Word("baseline", "What is usual of a model: inferences frozen as a summary, or, if rolling, those before each window.", glossary=True),
    "window": Word("window", "The inferences of a model within a span of time.", glossary=True),
    "signal": Word("signal", "A column with one value for each inference, which is compared: a score, the brightness, a metadata key, the embedding.", glossary=True),
    "effect": Word("effect", "How large a change is, in a unit that does not grow with the number of images. Its minimum is the smallest that matters. "
                   "“Moved 1.56” is an effect of 1.56.", glossary=True),
    "p-value": Word("p-value", "How likely a difference at least as large is, if nothing changed. Adjusted: corrected for the number of signals and windows.", glossary=True),
    "alarm": Word("alarm", "A signal whose adjusted p-value and effect both say that it changed. An alert is the message about it.", glossary=True),
    "too-few": Word("too few", "Nothing can be said: there are too few images that are independent of each other. Images of one camera in a row resemble each other and "
                    "count as fewer than they are."),
    "independent": Word("effective sample size", "How many independent values a column is worth.", glossary=True),
    "embedding": Word("embedding", "A vector that describes an image, taken from inside a model's graph.", glossary=True),
}  # fmt: skip
_SIGNALS = {
    "predictions": Word("predictions", "The number of objects an image."),
    "area": Word("area", "The size of objects, as a share of the image."),
    "aspect": Word("aspect", "The width of objects over their height."),
    "x": Word("x", "The place of objects from left to right, 0 to 1."),
    "y": Word("y", "The place of objects from top to bottom, 0 to 1."),
    "angle": Word("angle", "The angle of oriented objects."),
    "mask_share": Word("mask_share", "The share of the image that is covered by objects."),
    "margin": Word("margin", "How far the best score is above the second best."),
    "entropy": Word("entropy", "How evenly scores are spread over labels: large where a model is unsure."),
    "answer_length": Word("answer_length", "The length of answers in characters."),
    "bytes_per_pixel": Word("bytes_per_pixel", "The size of the file over the number of pixels: it falls where images are compressed more, or show less."),
    "image.brightness": Word("image.brightness", "The mean lightness of the image, from 0 (black) to 100 (white)."),
    "image.contrast": Word("image.contrast", "How far lightness spreads within the image."),
    "image.blur": Word("image.blur", "How soft the image is: larger where it is out of focus. Pages show it from 0 (sharp) to 100 (no edge at all); a filter compares its logarithm, from about -10 to 0."),
    "image.saturation": Word("image.saturation", "How colourful the image is; 0 is grey."),
    "image.colour_a": Word("image.colour_a", "The mean colour from green (less) to red (more)."),
    "image.colour_b": Word("image.colour_b", "The mean colour from blue (less) to yellow (more)."),
    "image.dark": Word("image.dark", "The share of pixels that are nearly black."),
    "image.burnt": Word("image.burnt", "The share of pixels that are nearly white."),
}  # fmt: skip
_SERVER = {
    "inference": Word("inference", "One image, one row of features, or one set of tensors, run through a model, with what came out.", glossary=True),
    "p95": Word("p95", "Of 100 answers 95 took no longer than this; p50 is the same of 50."),
    "crops": Word("Answers crops", "The model that answers the crops of a detector: each object that is found is cut out and sent to that model."),
    "stored": Word("stored", "All inferences that were stored, also those that retention removed since: a list has those that are there."),
    "meta": Word("meta.…", "A key of the metadata: what a client says about an image, such as its camera."),
    "std": Word("std.…", "Standard metadata, which the server adds by itself, such as the size of an image."),
    "sig": Word("sig.image.…", "A number that was measured on the image for drift, such as its brightness."),
}  # fmt: skip

WORD_GROUPS: Mapping[str, Mapping[str, Word]] = {
    "How good a model is": _QUALITY,
    "What changed": _DRIFT,
    "What is compared for drift": _SIGNALS,
    "The server and the filter": _SERVER,
}
"""Words by id, in groups by their heading."""

WORDS: Mapping[str, Word] = {
    id_: word for group in WORD_GROUPS.values() for id_, word in group.items()
}
"""All words by id."""

_METRIC_WORDS = {"AP": "ap", "AR": "ar", "AveragePrecision": "ap", "IOU": "iou", "IoU": "iou", "F1": "f1",
                 "Precision": "precision", "Recall": "recall"}  # fmt: skip


def words_of_metrics(names: list[str]) -> list[str]:
    """Return the ids of the words that stand in some names of metrics, such as `AP, IoU 0.5`."""
    pieces = [piece for name in names for piece in name.replace(",", " ").split()]
    return list(dict.fromkeys(_METRIC_WORDS[piece] for piece in pieces if piece in _METRIC_WORDS))


FIELD_WORDS: Mapping[str, str] = {
    "id": "id of the inference",
    "request_id": "id of the request",
    "model": "name, or name:version",
    "version": "version of the model",
    "model.sha256": "hash of the model's file, or its first 8 digits",
    "task": "task of the model",
    "action": "action of the request",
    "ts": "time",
    "latency_ms": "milliseconds until the answer",
    "status": "200, or 500 where the model failed",
    "predictions": "number of predictions",
    "answer": "answer in words",
    "input.hash": "hash of the image",
    "ground_truth": "whether the truth is known",
    "ground_truth.label": "label in the truth",
    "ground_truth.review": "review of the truth",
    "feedback": "whether there is feedback",
    "report": "id of a report, for its cells",
    "truth": "true label in a cell of the report",
    "predicted": "predicted label in a cell of the report",
    "label": "label of a prediction",
    "best": "as label, of a classification the best one",
    "box": "a prediction of any label",
    "geo": "place, as 51.5,-0.12,5km",
    "sig.image": "measured on the image",
    "of.score": "its score",
    "of.area": "area of its box, in square pixels",
    "of.cx": "centre of its box, pixels from the left",
    "of.cy": "centre of its box, pixels from the top",
    "of.width": "width of its box, in pixels",
    "of.height": "height of its box, in pixels",
    "of.n": "number of such predictions",
}
"""What each field of a filter is; after `of.`, what a prediction is bounded by."""

_OF_VALUES: Mapping[str, str] = {
    "eq": "is",
    "ne": "is not",
    "gt": "more than",
    "ge": "at least",
    "lt": "less than",
    "le": "at most",
    "in": "one of several, with commas",
    "exists": "whether it is there",
    "contains": "has this text in it",
}
_OF_TIMES: Mapping[str, str] = {
    "eq": "at",
    "ne": "not at",
    "gt": "after",
    "ge": "from then on",
    "lt": "before",
    "le": "until",
}
OPERATOR_WORDS: Mapping[str, Mapping[str, str]] = {
    "value": _OF_VALUES,
    "time": {**_OF_VALUES, **_OF_TIMES},
}
"""What each operator of a filter means, for values and for times."""
