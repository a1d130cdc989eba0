"""The stored images of a drift report: those that show what changed, and those least like the baseline."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from quadriga.monitor.drift.changed_images import Candidate, Candidates
from quadriga.monitor.report.schema import ChangedImage, ChangedImages, Neighbour, Unlike
from quadriga.store.columns import read_inferences
from quadriga.store.inferences import InferenceReader
from quadriga.store.records import StoredInference

IMAGES_PER_SIDE = 3
"""Number of images of a signal from the window, and from the baseline."""

_Image = TypeVar("_Image", Neighbour, Unlike, ChangedImage)
_Item = TypeVar("_Item")


class StoredImages:
    """Adds images and predictions from the store to the inferences that a report shows.

    Inferences that were deleted meanwhile are left as they are, without an image.
    """

    def __init__(self, reader: InferenceReader) -> None:
        self._reader = reader
        self._records: dict[str, StoredInference] = {}

    def unlike(self, images: Sequence[Unlike]) -> list[Unlike]:
        """Complete the images least like the baseline, each image once, with their neighbours."""
        self._read(
            [
                int(inference_id)
                for image in images
                for inference_id in (
                    image.inference_id,
                    *(near.inference_id for near in image.nearest),
                )
            ]
        )
        distinct = _distinct(map(self._complete, images), lambda image: image.image)
        return [
            replace(image, nearest=[self._complete(near) for near in image.nearest])
            for image in distinct
        ]

    def changed(
        self, candidates: Sequence[Candidates], unlike: Sequence[Unlike]
    ) -> list[ChangedImages]:
        """Return the images of each signal, each image once a signal; of embeddings those least like the baseline.

        Args:
            candidates: From `choose_images`.
            unlike: From `unlike`.
        """
        self._read(
            [
                candidate.inference_id
                for signal in candidates
                for candidate in (*signal.current, *signal.baseline)
            ]
        )
        return [
            ChangedImages(signal.signal, self._shown(signal.current), self._shown(signal.baseline))
            if signal.current
            else _most_unlike(signal.signal, unlike)
            for signal in candidates
        ]

    def _read(self, ids: Sequence[int]) -> None:
        missing = sorted({id_ for id_ in ids if str(id_) not in self._records})
        self._records |= {record.id: record for record in read_inferences(self._reader, missing)}

    def _shown(self, candidates: Sequence[Candidate]) -> list[ChangedImage]:
        """Return the images of some of these candidates, spread from the first to the last."""
        images = _distinct(
            (
                self._complete(ChangedImage(str(candidate.inference_id), candidate.value))
                for candidate in candidates
            ),
            lambda image: image.image,
        )
        last = len(images) - 1
        positions = dict.fromkeys(
            round(place * last / (IMAGES_PER_SIDE - 1)) for place in range(IMAGES_PER_SIDE)
        )
        return [images[position] for position in positions] if images else []

    def _complete(self, image: _Image) -> _Image:
        record = self._records.get(image.inference_id)
        if record is None:
            return image
        return replace(
            image,
            image=record.input.hash,
            width=record.input.width,
            height=record.input.height,
            predictions=record.predictions,
        )


def _distinct(items: Iterable[_Item], image_hash: Callable[[_Item], str | None]) -> list[_Item]:
    """Leave out items whose image is one of an earlier item; items without an image stay."""
    by_image: dict[object, _Item] = {}
    for item in items:
        by_image.setdefault(image_hash(item) or object(), item)
    return list(by_image.values())


def _most_unlike(signal: str, unlike: Sequence[Unlike]) -> ChangedImages:
    """Return the images least like the baseline, beside the nearest image of the baseline of each."""
    nearest = _distinct(
        (near for image in unlike for near in image.nearest[:1]), lambda near: near.image
    )
    return ChangedImages(
        signal,
        [_without_value(image) for image in unlike[:IMAGES_PER_SIDE]],
        [_without_value(near) for near in nearest[:IMAGES_PER_SIDE]],
    )


def _without_value(image: Unlike | Neighbour) -> ChangedImage:
    return ChangedImage(
        image.inference_id,
        image=image.image,
        width=image.width,
        height=image.height,
        predictions=image.predictions,
    )
