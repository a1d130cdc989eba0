"""The stored images of a model that calibrate its quantization, and those with ground truth that judge it."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from quadriga.extras.tuning.quantizer import QuantizationError
from quadriga.store.blobs.interface import Blobs
from quadriga.store.query.columns import read_inferences, with_ground_truth
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.records import REJECTED, StoredInference

_PAGE_SIZE = 500


class ImageToRun(NamedTuple):
    """An image, and its ground truth if it is there to judge by."""

    name: str
    read: Callable[[], bytes | None]
    """Returns the file of the image, or None if it was removed; raises `OSError` if it cannot be read."""
    ground_truth: msgspec.Raw | None = None


class ChosenImages(NamedTuple):
    """Images to calibrate with and images to judge by; none is both."""

    calibration: list[ImageToRun]
    judged: list[ImageToRun]


class ImageChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of stored images of a model: filters, numbers and the seed of the draw."""

    model: str
    calibrate: Any = None
    """Filter of the images to calibrate with; None for all."""
    where: Any = None
    """Filter of the images to judge by; None for all."""
    samples: int = 500
    """Maximum images to calibrate with."""
    max_judged: int = 1000
    """Maximum images to judge by; 0 for none."""
    seed: int = 0


def choose_images(reader: InferenceReader, blobs: Blobs, choice: ImageChoice) -> ChosenImages:
    """Choose images at random, each once, however often it was sent.

    Images with ground truth judge; they calibrate only where there are too few others, and at most half of them.

    Raises:
        QuantizationError: No image is stored, or none with ground truth.
        StoreError: The database does not answer, or a filter is invalid.
    """
    with suppress(
        NotReadyError, QueryTimeoutError
    ):  # the writer lags: choose from what is committed
        reader.wait_for_journal()
    chosen = _Chooser(reader, random.Random(choice.seed))  # noqa: S311 - a sample, no secret
    of_model = {"model": {"eq": choice.model}}
    calibrating = chosen.ids(of_model, choice.calibrate)
    if not calibrating:
        raise QuantizationError(
            f"no inferences of {choice.model!r:.80} match the filter: its images calibrate"
        )
    judging = (
        calibrating if choice.where == choice.calibrate else chosen.ids(of_model, choice.where)
    )
    true_ids = set(with_ground_truth(reader, {*judging, *calibrating}))
    judged = chosen.take([id_ for id_ in judging if id_ in true_ids], choice.max_judged)
    if choice.max_judged and not judged:
        raise QuantizationError(
            f"no image of {choice.model!r:.80} is stored with ground truth to judge by: send ground truth, or give "
            "annotated files by --dataset"
        )
    calibration = chosen.take(
        [id_ for id_ in calibrating if id_ not in true_ids], choice.samples, judged
    )
    missing = choice.samples - len(calibration)
    if missing:
        reserved = dict(list(judged.items())[: (len(judged) + 1) // 2])
        also = chosen.take(
            [id_ for id_ in calibrating if id_ in true_ids], missing, {*reserved, *calibration}
        )
        judged = {key: record for key, record in judged.items() if key not in also}
        calibration |= also
    if not calibration:
        raise QuantizationError(
            f'no image of {choice.model!r:.80} is kept to calibrate with: does its model.toml say inputs = "none" '
            "under [store], or has retention removed them?"
        )
    return ChosenImages(
        [_image(blobs, key, record) for key, record in calibration.items()],
        [_image(blobs, key, record) for key, record in judged.items()],
    )


class _Chooser:
    """Chooses stored images in a random order."""

    def __init__(self, reader: InferenceReader, draws: random.Random) -> None:
        self._reader = reader
        self._draws = draws

    def ids(self, *filters: Any) -> list[int]:
        """Return the ids of all matches of several filters, in a random order."""
        where = {"and": [filter_ for filter_ in filters if filter_ is not None]}
        ids = [id_ for page in self._reader.matching_ids(where) for id_ in page]
        self._draws.shuffle(ids)
        return ids

    def take(
        self, ids: Sequence[int], count: int, excluded: Collection[str] = ()
    ) -> dict[str, StoredInference]:
        """Return so many images by their hash, with an inference of each, in the order of the ids."""
        taken: dict[str, StoredInference] = {}
        for start in range(0, len(ids), _PAGE_SIZE):
            if len(taken) >= count:
                break
            page = ids[start : start + _PAGE_SIZE]
            records = {int(record.id): record for record in read_inferences(self._reader, page)}
            for record in (records[id_] for id_ in page if id_ in records):
                key = record.input.hash
                if len(taken) < count and key and key not in excluded and _is_usable(record):
                    taken.setdefault(key, record)
        return taken


def _is_usable(record: StoredInference) -> bool:
    mime = record.input.mime or ""
    is_rejected = record.ground_truth_review == REJECTED
    return (
        record.status == 200 and record.input.kept and mime.startswith("image/") and not is_rejected
    )


def _image(blobs: Blobs, key: str, record: StoredInference) -> ImageToRun:
    truth = record.ground_truth
    raw = None if truth is None else msgspec.Raw(msgspec.json.encode(truth))
    return ImageToRun(record.id, partial(blobs.get, key), raw)


def read_images(images: Sequence[ImageToRun]) -> Iterator[tuple[ImageToRun, bytes]]:
    """Yield those images that can be read, each with its file."""
    for image in images:
        with suppress(OSError):
            data = image.read()
            if data is not None:
                yield image, data
