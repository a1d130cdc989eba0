"""How an export is written: its parameters, whose annotations a dataset has, its splits, and links to images that are not in it."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec
from blake3 import blake3

from quadriga.quoting import quoted
from quadriga.store.changes.ground_truth import join_text
from quadriga.store.exchange.archives import image_name
from quadriga.store.exchange.predictions import decode_objects, score_of
from quadriga.store.jobs.jobs import EndWebhook
from quadriga.store.records import metadata
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import REJECTED, StoredInference, json_text

BY_IMAGE = "input.hash"
MAX_SPLITS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)
_ALL_HASHES = 1 << 64


class Splits:
    """Decides the split of each inference by the hash of its image, or of the value of a metadata key.

    Args:
        shares: Share of each split, in order; together 1. Empty for no splits.
        by: `input.hash`, or `meta.<key>`.

    Raises:
        QueryError: There is no such split, or the shares are not 1 together.
    """

    def __init__(self, shares: Mapping[str, float], by: str = BY_IMAGE) -> None:
        _check(shares, by)
        self._by = by
        self._ends: list[tuple[str, Fraction]] = []
        total = Fraction(0)
        for name, share in shares.items():
            total += Fraction(str(share))  # as it was written: 0.7 + 0.2 + 0.1 is 1
            self._ends.append((name, total * _ALL_HASHES))

    def split_of(self, record: StoredInference) -> str:
        """Return the split of an inference; empty if there are no splits."""
        if not self._ends:
            return ""
        position = int.from_bytes(blake3(self._key(record).encode()).digest(length=8))
        return next(name for name, end in self._ends if position < end)

    def _key(self, record: StoredInference) -> str:
        """Return what decides: all inferences without it are together, as they may be from one source."""
        if self._by == BY_IMAGE:
            return f"image {record.input.hash or record.id}"
        path = self._by.removeprefix("meta.")
        value = metadata.flatten(metadata.decode(record.metadata)).get(path)
        if value is None:
            return "no source"
        return f"source {join_text(value)}"


def parse_splits(text: str) -> dict[str, float]:
    """Parse `train=0.8,val=0.2`.

    Raises:
        QueryError: It is not of this form.
    """
    shares: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.partition("=")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if name.strip() in shares or not 0 <= number <= 1:
            raise QueryError(
                f"expected splits such as train=0.8,val=0.2, each once, got {quoted(text, 80)}"
            )
        shares[name.strip()] = number
    return shares


def _check(shares: Mapping[str, float], by: str) -> None:
    if by != BY_IMAGE and not (by.startswith("meta.") and len(by) > len("meta.")):
        raise QueryError(f"expected split_by to be {BY_IMAGE} or meta.<key>, got {quoted(by, 80)}")
    if not shares:
        return
    if len(shares) > MAX_SPLITS:
        raise QueryError(f"expected at most {MAX_SPLITS} splits, got {len(shares)}")
    for name, share in shares.items():
        if _NAME.fullmatch(name) is None:
            raise QueryError(
                "expected the name of a split to be at most 32 letters, digits, - and _, "
                f"got {quoted(name, 80)}"
            )
        if not 0 < share <= 1:
            raise QueryError(f"expected a share above 0 and up to 1 for {name}, got {share}")
    total = sum(Fraction(str(share)) for share in shares.values())
    if total != 1:
        raise QueryError(
            f"expected the shares of all splits to be 1 together, got {float(total)}: {json_text(dict(shares))}"
        )


Annotated = Literal["either", "ground_truth", "predictions"]


def choose_annotations(
    record: StoredInference, annotated: Annotated
) -> tuple[str, list[dict[str, Any]]] | None:
    """Return whose annotations an inference gets, and these; None where it has none such.

    Of the predictions of a classifier only the best one is an annotation.
    """
    if annotated != "predictions" and has_truth(record):
        return "ground_truth", decode_objects(record.ground_truth)
    if annotated == "ground_truth":
        return None
    predictions = decode_objects(record.predictions)
    if record.task == "IMAGE_CLASSIFICATION" and predictions:
        predictions = [max(predictions, key=lambda item: score_of(item) or 0.0)]
    return "predictions", predictions


def has_truth(record: StoredInference) -> bool:
    """Check whether an inference has ground truth that nobody rejected."""
    return record.ground_truth is not None and record.ground_truth_review != REJECTED


Format = Literal[
    "jsonl",
    "parquet",
    "chariot",
    "coco",
    "yolo",
    "yolo-obb",
    "yolo-seg",
    "imagefolder",
    "dota",
    "cvat",
    "label-studio",
]


class ExportParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to take out, and how."""

    where: Any = None
    """A filter, as of a query."""
    format: Format = "jsonl"
    images: bool | None = None
    """Whether the images that were kept come along; None: in datasets. Makes `jsonl` a zip."""
    annotations: Annotated = "either"
    """What datasets annotate: `either` is the truth where there is one, else the predictions."""
    split: dict[str, float] = {}
    """Share of each split of a dataset, together 1; empty for no splits."""
    split_by: str = BY_IMAGE
    """What is never on both sides of a split: images, or what has the same value of `meta.<key>`."""
    image_url: str = ""
    """Form of links to images that do not come along, such as `/images/{file}`."""
    upright: bool = False
    """Whether images with an EXIF orientation are written upright, for tools that ignore it."""
    labels: list[str] = []
    """Labels in the order of their numbers in YOLO and COCO; others follow in the order in which they appear."""
    webhook: EndWebhook = msgspec.UNSET
    """URL that is called when the job has ended."""


_LINK_FIELDS = ("{id}", "{file}", "{hash}", "{blob}")


def label_numbers(labels: Sequence[str], first: int) -> dict[str, int]:
    """Return the number of each label, in their order.

    The second of two equal labels is named `class_<number>`, so that all behind it keep their numbers; with `_` behind it
    where another label has that name.
    """
    given = set(labels)
    numbers: dict[str, int] = {}
    for number, label in enumerate(labels):
        name = label
        if name in numbers:
            name = f"class_{number}"
            while name in given:
                name += "_"
        numbers[name] = first + number
    return numbers


def check_link(template: str) -> None:
    """Check the form of links.

    Raises:
        QueryError: It has other braces than those of fields.
    """
    rest = template
    for field in _LINK_FIELDS:
        rest = rest.replace(field, "")
    if "{" in rest or "}" in rest:
        raise QueryError(
            f"expected image_url with {', '.join(_LINK_FIELDS)} and no other braces, got {template[:200]!r}"
        )


def link_of(record: StoredInference, template: str) -> str:
    """Return the link to an image; empty without a form."""
    digest = (record.input.hash or "").rpartition(":")[2]
    values: Mapping[str, str] = {
        "{id}": record.id,
        "{file}": image_name(record),
        "{hash}": record.input.hash or "",
        "{blob}": f"{digest[:2]}/{digest}",
    }
    link = template
    for field, value in values.items():
        link = link.replace(field, value)
    return link
