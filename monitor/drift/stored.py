"""Drift of stored inferences: a window of a model against a baseline, or another window."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from quadriga.monitor.drift.comparison import compare
from quadriga.monitor.drift.estimates import estimate_stored_accuracy
from quadriga.monitor.drift.metadata import (
    PRESENCE_SUFFIX,
    find_source,
    identifier_reason,
    with_presence,
)
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow, filter_reasons
from quadriga.monitor.drift.row_signals import METADATA_PREFIX
from quadriga.monitor.drift.samples import EMBEDDING, Column, DriftError, kind_conflict
from quadriga.monitor.drift.significance.decision import ComparisonSettings
from quadriga.monitor.drift.similarity import least_similar
from quadriga.monitor.drift.slices import find_changed_slices, find_drift_slices
from quadriga.monitor.drift.summary import Summary
from quadriga.monitor.drift.windows import WindowInfo, WindowQuery, WindowSummary, read_window
from quadriga.monitor.executors import MapShards, OnProgress
from quadriga.monitor.report.drift_texts import (
    is_undecided,
    maybe_chance_signals,
    signals_in_full,
)
from quadriga.monitor.report.schema import (
    ChangedImage,
    ChangedImages,
    Data,
    Neighbour,
    Report,
    Signal,
    Unlike,
    Window,
    provenance,
    sorted_by_effect,
)
from quadriga.quoting import quoted
from quadriga.store.query.columns import read_inferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.ids import time_ms
from quadriga.store.records.records import StoredInference, now_text, timestamp_text
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
        signals: Sequence[Signal],
        *,
        unlike: Sequence[Unlike],
    ) -> list[ChangedImages]:
        """Return the images of each signal, each image once a signal; of embeddings those least like the baseline.

        Args:
            baseline: Baseline; the order of its rows are ids of inferences.
            current: Current window, likewise.
            signals: Signals that a report shows in full; the first `MAX_SIGNALS` are taken.
            unlike: From `unlike`.
        """
        candidates = _choose_images(baseline, current, signals)
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
    baseline: Summary, current: Summary, signals: Sequence[Signal]
) -> list[ImageCandidates]:
    """Choose inferences whose images show how signals changed.

    Of numbers they are spread from the end towards which the signal moved to its middle, beside those in the middle of
    the baseline; of labels they have the label that became most frequent, beside the one that became rarest. For
    embeddings no candidates are listed: the images least like the baseline show it.
    """
    candidates = []
    for signal in signals[:MAX_SIGNALS]:
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


BASELINE_ROWS = 10_000
"""Maximum number of rows of a baseline that are compared."""

MAX_SLICE_VALUES, MAX_SLICE_KEYS = 12, 3
"""Metadata keys that are sliced by if none is named: the source, then those with the fewest values, at most so many of each."""

MAX_UNLIKE = 12
"""Maximum number of images in a report that are least like the baseline."""

MAX_MOVED = 5
"""Maximum number of signals that slices are compared by: those that moved most.

Embeddings, which take long, are among them only if nothing else moved.
"""


def compare_stored(
    reader: InferenceReader,
    parameters: DriftParameters,
    baseline: WindowSummary | None = None,
    on_progress: OnProgress = lambda *_: None,
    *,
    map_shards: MapShards = None,
    now_us: int | None = None,
) -> Report:
    """Compare a window of stored inferences with a baseline.

    Args:
        reader: The store.
        parameters: What to compare, from `resolve_times`.
        baseline: The baseline that the parameters name; None where they say which window it is.
        on_progress: See `OnProgress`.
        map_shards: Reads the inferences; see `MapShards`.
        now_us: Time that `now` means, in microseconds since 1970; None: now.

    Raises:
        DriftError: There are no inferences to compare, or no baseline.
        StoreError: The database does not answer.
    """
    started = time.monotonic()
    settings = msgspec.convert(parameters, ComparisonSettings, from_attributes=True)
    query = current_window_query(reader, parameters, now_us)
    summarise_window = partial(read_window, reader, on_progress=on_progress, map_shards=map_shards)
    current = summarise_window(
        query if baseline is None else _comparable_query(query, baseline.info)
    )
    _check_model_answered(reader, query, current)
    if baseline is None:
        baseline = summarise_window(
            _baseline_query(parameters, _comparable_query(query, current.info))
        )
        if not baseline.info.window.n:
            model = parameters.model
            raise DriftError(f"the model {quoted(model, 80)} has no inferences in the baseline")
    sides, left_out = _comparable_signals(baseline, current, parameters)
    infos = baseline.info, current.info
    filtered = filter_reasons(_signal_names(sides), *(info.window.filter for info in infos))
    left_out |= {name: why for name, why in filtered.items() if name not in parameters.ignore}
    on_progress(current.info.window.n, current.info.window.n)
    reported = _reported(parameters, infos, left_out)
    if (explanation := find_source(*sides, prefix=METADATA_PREFIX)) is not None:
        source, sides = explanation
        reported["source_key"] = source.column.removeprefix(METADATA_PREFIX)
        reported["source_key_reason"] = source.reason
    sides = with_presence(*sides, names=_metadata_names(sides))
    report = compare(
        *_selected_signals(sides, infos, parameters, filtered),
        settings,
        task=current.info.task,
        moment=_moment,
    )
    alarms = [signal for signal in sorted_by_effect(report.signals) if signal.alarm]
    images = StoredImages(reader)
    similarity = least_similar(sides[0].sample, sides[1].sample, current.info.space)
    unlike = images.unlike(similarity.unlike)
    names = [signal.name for signal in alarms]
    moved = [name for name in names if name != EMBEDDING] or names
    moved += [signal.name for signal in maybe_chance_signals(report) if signal.name != EMBEDDING]
    slice_columns = _slice_columns(sides, parameters, source_key=reported["source_key"])
    slices = find_drift_slices(*sides, moved[:MAX_MOVED], by=slice_columns, settings=settings)
    named = {metric.parameters["signal"] for slice_ in slices for metric in slice_.metrics}
    comparable = [
        signal
        for signal in report.signals
        if signal.name not in named and (signal.units == "rows" or is_undecided(signal))
    ]
    return replace(
        report,
        created=now_text(),
        model=current.info.model,
        data=_data(infos, report.data),
        parameters=reported | report.parameters,
        metrics=estimate_stored_accuracy(
            reader, current.info.task, *(side.sample.order for side in sides)
        ),
        slices=[
            *slices,
            *find_changed_slices(*sides, comparable, slice_columns, settings, moment=_moment),
        ],
        unlike=unlike[:MAX_UNLIKE],
        unlike_share=similarity.unlike_share,
        changed=images.changed(*sides, signals_in_full(report), unlike=unlike),
        provenance=provenance(started),
    )


def _moment(inference_id: int) -> str:
    """Return the time of an inference."""
    return timestamp_text(time_ms(inference_id))


def current_window_query(
    reader: InferenceReader, parameters: DriftParameters, now_us: int | None = None
) -> WindowQuery:
    """Return the query of the current window, after waiting a short time for the writer to catch up."""
    with suppress(NotReadyError, QueryTimeoutError):  # what is in the database is enough then
        reader.wait_for_journal()
    return WindowQuery(
        parameters.model,
        parameters.current,
        reader.latest_seq(),
        time.time_ns() // 1000 if now_us is None else now_us,
        source_keys=parameters.source_keys,
        seed=parameters.seed,
    )


def _check_model_answered(
    reader: InferenceReader, query: WindowQuery, current: WindowSummary
) -> None:
    """Check that the model has any inferences, if the window has none: an empty window is no error."""
    if not current.info.window.n:
        any_of_model = {"model": {"eq": query.model}}
        if not any(ids for ids in reader.matching_ids(any_of_model, query.now_us)):
            raise DriftError(f"the model {quoted(query.model, 80)} has no inferences")


def _comparable_query(query: WindowQuery, compared: WindowInfo) -> WindowQuery:
    """Restrict a query to what can be compared with another window."""
    keys = query.source_keys if compared.source_key is None else [compared.source_key]
    return replace(query, task=compared.task or query.task, space=compared.space, source_keys=keys)


def _baseline_query(parameters: DriftParameters, current: WindowQuery) -> WindowQuery:
    """Return the query of the window that is the baseline."""
    window = parameters.baseline
    if not isinstance(window, StoredWindow):
        raise DriftError(
            f"expected the summary of the baseline {quoted(window, 80)}, got its name alone"
        )
    return replace(current, window=window, max_rows=BASELINE_ROWS)


def _comparable_signals(
    baseline: WindowSummary, current: WindowSummary, parameters: DriftParameters
) -> tuple[tuple[Summary, Summary], dict[str, str]]:
    """Drop signals whose kinds differ between the sides; return the reasons why signals are left out, too."""
    sides = baseline.summary, current.summary
    left_out = baseline.info.left_out | current.info.left_out
    names = _signal_names(sides)
    for name in (*parameters.signals, *parameters.ignore):
        if name.removesuffix(PRESENCE_SUFFIX) not in names | left_out.keys():
            listed = ", ".join(sorted(names)[:20]) or "none"
            raise DriftError(f"expected a signal among {listed}, got {quoted(name, 80)}")
    for column in sides[0].sample.columns:
        current_column = sides[1].sample.column(column.name)
        if current_column is not None and (kinds := kind_conflict(column, current_column)):
            left_out[column.name] = f"{kinds[0]} in the baseline, {kinds[1]} in the window"
    samples = sides[0].sample, sides[1].sample
    left_out |= {
        name: reason
        for name in _metadata_names(sides) - left_out.keys()
        if (reason := identifier_reason(name, *samples))
    }
    comparable = sides[0].without(left_out), sides[1].without(left_out)
    reasons = {name: reason for name, reason in left_out.items() if name not in parameters.ignore}
    return comparable, reasons


def _selected_signals(
    sides: tuple[Summary, Summary],
    infos: tuple[WindowInfo, WindowInfo],
    parameters: DriftParameters,
    filtered: Collection[str],
) -> tuple[Summary, Summary]:
    """Drop the source keys, signals that a filter restricts, ignored ones, and, if signals are named, all others.

    They are dropped only here, as the window can be sliced by what its filter restricts.
    """
    source_names = {METADATA_PREFIX + info.source_key for info in infos if info.source_key}
    names = _signal_names(sides)
    ignored = _with_their_presence(names, {*parameters.ignore, *filtered}) | source_names
    if parameters.signals:
        ignored |= names - _with_their_presence(names, {*parameters.signals})
    return sides[0].without(ignored), sides[1].without(ignored)


def _with_their_presence(names: set[str], listed: set[str]) -> set[str]:
    """Return the names that are listed, and those that say whether a listed signal is there."""
    return {name for name in names if {name, name.removesuffix(PRESENCE_SUFFIX)} & listed}


def _metadata_names(sides: tuple[Summary, Summary]) -> set[str]:
    return {name for name in _signal_names(sides) if name.startswith(METADATA_PREFIX)}


def _signal_names(sides: tuple[Summary, Summary]) -> set[str]:
    return {column.name for side in sides for column in side.sample.columns}


def _slice_columns(
    sides: tuple[Summary, Summary], parameters: DriftParameters, *, source_key: str | None
) -> list[str]:
    """Return the columns of the metadata that are sliced by."""
    if parameters.by:
        return [METADATA_PREFIX + key.removeprefix(METADATA_PREFIX) for key in parameters.by]
    source = METADATA_PREFIX + source_key if source_key else ""
    counts = {
        column.name: len(column.labels)
        for column in sides[1].sample.columns
        if column.kind == "categorical"
        and column.name.startswith(METADATA_PREFIX)
        and not column.name.endswith(PRESENCE_SUFFIX)
        and 1 < len(column.labels) <= MAX_SLICE_VALUES
    }
    return sorted(counts, key=lambda name: (name != source, counts[name], name))[:MAX_SLICE_KEYS]


def _data(infos: tuple[WindowInfo, WindowInfo], compared: Data) -> Data:
    """Return the two windows, with the rows that were compared."""
    baseline, current = infos
    excluded = {f"baseline_{reason}": n for reason, n in baseline.excluded.items()}
    return Data(
        _with_sizes(current.window, compared.current),
        _with_sizes(baseline.window, compared.baseline or Window()),
        current.excluded | excluded,
    )


def _with_sizes(window: Window, compared: Window) -> Window:
    return replace(window, n=compared.n, n_eff=compared.n_eff)


def _reported(
    parameters: DriftParameters, infos: tuple[WindowInfo, WindowInfo], left_out: dict[str, str]
) -> dict[str, Any]:
    """Return the parameters that no other field of the report holds."""
    values = msgspec.to_builtins(parameters)
    reported = {name: values[name] for name in ("signals", "ignore", "by") if values[name]}
    baseline, current = infos
    digest = baseline.model.sha256
    if digest and current.window.n and current.model.sha256 != digest:
        reported["baseline_sha256"] = digest
    return {
        "baseline": values["baseline"],
        **reported,
        "source_key": current.source_key,
        "left_out": dict(sorted(left_out.items())),
    }
