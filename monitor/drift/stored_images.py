"""The images of a drift report: those that show what changed and how it used to be, and those least like the baseline."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.samples import EMBEDDING, Column
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.report.schema import ChangedImage, ChangedImages, Neighbour, Signal, Unlike
from quadriga.store.query.columns import read_inferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import StoredInference
from quadriga.tasks.arrays import Float64Array, Int64Array

MAX_SIGNALS = 16
"""Maximum number of signals with images."""

CANDIDATES = 12
"""Number of candidates on each side, of which those whose image is another candidate's are dropped."""

_QUANTILES = np.linspace(0.95, 0.5, CANDIDATES)
"""Places of the chosen images among those of the window, from the end towards which the signal moved."""

IMAGES_PER_SIDE = 3
"""Number of images of a signal from the window, and from the baseline."""

_Image = TypeVar("_Image", Neighbour, Unlike, ChangedImage)
_Item = TypeVar("_Item")


class Candidate(NamedTuple):
    """An inference whose image may be shown."""

    inference_id: int
    value: float | str


class ImageCandidates(NamedTuple):
    """Inferences whose images may be shown for a signal, the clearest first."""

    signal: str
    current: list[Candidate]
    baseline: list[Candidate]


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
        self,
        baseline: Summary,
        current: Summary,
        alarms: Sequence[Signal],
        *,
        unlike: Sequence[Unlike],
    ) -> list[ChangedImages]:
        """Return the images of each signal, each image once a signal; of embeddings those least like the baseline.

        Args:
            baseline: Baseline; the order of its rows are ids of inferences.
            current: Current window, likewise.
            alarms: Signals with an alarm; the first `MAX_SIGNALS` are taken.
            unlike: From `unlike`.
        """
        candidates = _choose_images(baseline, current, alarms)
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
            created_at=record.created_at,
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
        created_at=image.created_at,
    )


def _choose_images(
    baseline: Summary, current: Summary, alarms: Sequence[Signal]
) -> list[ImageCandidates]:
    """Choose inferences whose images show how signals with an alarm changed.

    Of numbers they are spread from the end towards which the signal moved to its middle, beside those in the middle of
    the baseline; of labels they have the label that became most frequent, beside the one that became rarest. For
    embeddings no candidates are listed: the images least like the baseline show it.
    """
    candidates = []
    for signal in alarms[:MAX_SIGNALS]:
        columns = baseline.sample.column(signal.name), current.sample.column(signal.name)
        if columns[0] is None or columns[1] is None:
            continue
        if signal.kind == EMBEDDING:
            candidates.append(ImageCandidates(signal.name, [], []))
            continue
        choose = _choose_labelled if signal.kind == "categorical" else _choose_numbers
        rows = choose(signal, columns[0], columns[1])
        current_ids, baseline_ids = (
            _candidates(side, column, positions)
            for side, column, positions in zip(
                (current, baseline), (columns[1], columns[0]), rows, strict=True
            )
        )
        candidates.append(ImageCandidates(signal.name, current_ids, baseline_ids))
    return candidates


def _choose_numbers(
    signal: Signal, baseline: Column, current: Column
) -> tuple[Int64Array, Int64Array]:
    """Return positions in the values of the current window, and of the baseline."""
    rises = signal.before is None or signal.after is None or signal.after.mean >= signal.before.mean
    quantiles = _QUANTILES if rises else 1 - _QUANTILES
    wanted = np.quantile(current.values, quantiles)
    usual = np.quantile(baseline.values, np.linspace(0.4, 0.6, CANDIDATES))
    return _nearest(current.values, wanted), _nearest(baseline.values, usual)


def _nearest(values: Float64Array, wanted: Float64Array) -> Int64Array:
    """Return the positions of the values (N,) nearest to each of the wanted ones, without repetition."""
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(values[order], wanted).clip(0, len(values) - 1)
    return np.array(list(dict.fromkeys(order[places].tolist())), np.int64)


def _choose_labelled(
    signal: Signal, baseline: Column, current: Column
) -> tuple[Int64Array, Int64Array]:
    """Return positions of values with the label that gained most, and with the one that lost most."""
    counts = np.array([signal.histogram.baseline, signal.histogram.current], np.float64)
    gains = np.diff(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), axis=0)[0]
    labels = [str(label) for label in signal.histogram.edges]
    return (
        _with_label(current, labels[int(gains.argmax())]),
        _with_label(baseline, labels[int(gains.argmin())]),
    )


def _with_label(column: Column, label: str) -> Int64Array:
    """Return positions of values with a label, spread over time."""
    if label not in column.labels:
        return np.zeros(0, np.int64)
    positions = np.flatnonzero(column.values == column.labels.index(label))
    spread = np.linspace(0, len(positions) - 1, min(CANDIDATES, len(positions))).round()
    return positions[spread.astype(np.int64)]


def _candidates(side: Summary, column: Column, positions: Int64Array) -> list[Candidate]:
    ids = side.sample.order[column.rows[positions]].tolist()
    values = column.values[positions].tolist()
    if column.kind == "categorical":
        values = [column.labels[code] for code in values]
    return [Candidate(id_, value) for id_, value in zip(ids, values, strict=True)]
