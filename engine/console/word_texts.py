"""What the words on the pages mean: each has an explanation at hand, and all stand on the page of words."""

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
    "image.blur": Word("image.blur", "How soft the image is: larger where it is out of focus."),
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
    "words_quality": _QUALITY,
    "words_drift": _DRIFT,
    "words_signals": _SIGNALS,
    "words_server": _SERVER,
}
"""Words by id, in groups by the name of the text that is their heading."""

WORDS: Mapping[str, Word] = {
    id_: word for group in WORD_GROUPS.values() for id_, word in group.items()
}
"""All words by id."""

WORD_TEXTS: Mapping[str, str] = {
    "words": "Words",
    "words_about": "What the words on these pages mean. A word that is underlined with dots leads here.",
    "words_quality": "How good a model is",
    "words_drift": "What changed",
    "words_signals": "What is compared for drift",
    "words_server": "The server and the filter",
    "words_word": "Word",
    "words_meaning": "Meaning",
    "words_here": "Words here:",
}
"""Texts by name, as part of those of the console."""

_METRIC_WORDS = {"AP": "ap", "AR": "ar", "AveragePrecision": "ap", "IOU": "iou", "IoU": "iou", "F1": "f1",
                 "Precision": "precision", "Recall": "recall"}  # fmt: skip


def words_of_metrics(names: list[str]) -> list[str]:
    """Return the ids of the words that stand in some names of metrics, such as `AP, IoU 0.5`."""
    pieces = [piece for name in names for piece in name.replace(",", " ").split()]
    return list(dict.fromkeys(_METRIC_WORDS[piece] for piece in pieces if piece in _METRIC_WORDS))
