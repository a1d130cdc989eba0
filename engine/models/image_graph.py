"""A model of one graph that takes images: from image files to predictions."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.config.schema import explain_validation_error
from quadriga.engine.measures.model_counts import record_preparation
from quadriga.engine.models.recognition.families import FAMILIES
from quadriga.engine.models.runners.batched_runs import largest_difference
from quadriga.engine.models.runners.session import CPU, MAPS, LoadError, RunError, Session
from quadriga.proto.datatypes import NUMPY_TYPES
from quadriga.proto.errors import ModelNotReady
from quadriga.tasks import TASKS, Task, TiledTask
from quadriga.tasks.detection import ObjectDetection
from quadriga.tasks.image import Image, decode
from quadriga.tasks.legacy import legacy
from quadriga.tasks.parameters import Budget, ParameterError, choice
from quadriga.tasks.predictions import OutputError, Outputs, Prediction
from quadriga.tasks.resize import Affine, PixelRect, check_shape, noise, plain
from quadriga.tasks.specification import (
    InputSpec,
    ModelSpec,
    ObjectReferenceError,
    OutputSpec,
    Tiling,
    resolve,
)
from quadriga.tasks.tiling import count_tiles, tiles

Vector = npt.NDArray[np.float32]
"""An embedding: float32 (D,)."""
MAX_EMBEDDING_LENGTH = 16_384
"""Maximum length of an embedding."""


Read = TypeVar("Read")

FORMATS = ("protocol", "legacy")
"""Values of `output_format`; the first is the default."""

MAX_TILES = 10_000
"""Maximum tiles of one image; 50 megapixels in tiles of 128 x 128 with an overlap of 0.2 make half as many."""

MIXING_TOLERANCE = 1e-3
"""Largest difference between a number of an image that ran alone and beside another, as a share of it if it is above 1."""
HALF_MIXING_TOLERANCE = 1e-2
"""The same of outputs of 16 bits, and of devices that round so."""

_MAX_FLIPPED = 0.01
"""Share of whole numbers, such as classes of pixels, that rounding may change."""
_SUM_ROUNDING = 1e-3

_log = logging.getLogger("quadriga.models")

PreparedImage = tuple[npt.NDArray[Any], Affine]
"""One image as the network takes it, and the map to undo that."""


class ImageOptions(msgspec.Struct, frozen=True):
    """The options of one image."""

    action: str
    task: Any
    """Options as the task read them."""
    tiling: Tiling | None
    legacy_format: bool = False
    """Whether to write predictions in the format before chariot-v2-kserve."""


class ImageGraph:
    """Predicts what images show, with one graph; safe to use from several threads.

    Args:
        session: The graph.
        spec: What its input and outputs mean.
        max_batch: Maximum images that run together where the file leaves the number open.
        embedding: Name of the session's output that holds the embedding; empty for none.
        family: Family of the model, for messages; empty where model.toml describes it.
    """

    def __init__(
        self, session: Session, spec: ModelSpec, max_batch: int, embedding: str, family: str = ""
    ) -> None:
        self._session = session
        self._embedding = embedding
        self._outputs = [
            tensor.name for tensor in (*session.outputs, session.hidden_output) if tensor
        ]
        names = spec.output.name or [tensor.name for tensor in session.outputs]
        self._read_outputs = (names,) if isinstance(names, str) else names
        self._spec, self._family = spec, family
        self.task = spec.task
        self.batch_size = -1
        """Images that run together; negative where the file fixes the number."""
        self.one_by_one = ""
        """Why images run one by one though the file takes several; empty where they run together."""
        self.is_activated = False
        """Whether the scores of a classifier sum to 1 already, as the warm-up found."""
        self.scored_by = ""
        """Operator behind the scores of a classifier, once it has warmed up."""
        self._inputs = {tensor.name: tensor for tensor in session.inputs}
        self._check_inputs()
        self._has_rows = spec.output.batch_axis
        axis = self._inputs[spec.input.name].shape[0] if spec.input.batch_axis else 1
        self._filled = max(axis, 1)
        if spec.output.batch_axis and spec.input.batch_axis:
            self.batch_size = max_batch if axis < 0 else -axis
        self._alternatives: list[str] | None = None
        self._maps = next((info.name for info in session.outputs if info.datatype == MAPS), "")
        try:
            self._task: Task = resolve(spec.task, TASKS, "a task")(spec)
        except ObjectReferenceError as error:
            raise LoadError(
                f"{error}; install its package, or name its folder by the setting extensions"
            ) from error
        self._tiled_task = self._task if isinstance(self._task, TiledTask) else None

    def _check_inputs(self) -> None:
        """Check that each input beside the image's has a value that fits its shape.

        Raises:
            LoadError: One has none, or a value is of no input.
        """
        spec = self._spec.input
        values: dict[str, Any] = dict.fromkeys(self._inputs) | (spec.constants or {})
        if spec.size_input and spec.size_input not in self._inputs:
            names = ", ".join(self._inputs)
            raise LoadError(
                f"expected [input] size_input in model.toml to be one of {names}, got {spec.size_input!r}"
            )
        for name in values.keys() - {spec.name, spec.size_input}:
            info, value = self._inputs.get(name), values[name]
            length = len(value) if isinstance(value, list) else 1
            if info is None:
                names = ", ".join(self._inputs)
                raise LoadError(
                    f"expected [input.constants] in model.toml to name inputs among {names}, got {name!r}"
                )
            if value is None or length not in (1, *info.shape[-1:]):
                raise LoadError(
                    f"expected a value for the further input {name!r}, {info.datatype} {list(info.shape)}, got {value}: write "
                    f"it below [input.constants] in model.toml, {name} = a number, or a list of those of its last axis; or "
                    f'[input] size_input = "{name}" if it takes width and height of the network\'s input'
                )

    def decode(self, data: bytes, max_pixels: int, budget: Budget | None = None) -> Image:
        """Decode an image file as the network takes it; see `decode_image`."""
        return decode_image(data, self._spec.input, max_pixels, budget)

    def count_tiles(self, image: Image, options: ImageOptions) -> int:
        """Return the number of tiles of an image; 0 if it runs in one piece."""
        tiling = options.tiling
        if tiling is None:
            return 0
        return count_tiles(image.width, image.height, tiling.size, tiling.overlap)

    def count_tokens(self, _: ImageOptions) -> int:
        """Return 0, as no tokens are generated."""
        return 0

    def read_options(self, parameters: Mapping[str, Any]) -> ImageOptions:
        """Validate the parameters of one input."""
        options = self._task.options(parameters)
        tiling = self._spec.tiling
        if (value := parameters.get("tiling")) is not None:
            tiling = None if value is False else _parse_tiling(value)
        if tiling is not None and self._tiled_task is None:
            raise ParameterError(f"parameters.tiling cannot be used for {self._spec.task}")
        legacy_format = wants_legacy(parameters, self._spec.task)
        return ImageOptions(options.action, options, tiling, legacy_format)

    def predict(
        self,
        images: Sequence[Image],
        options: Sequence[ImageOptions],
        *,
        with_embedding: bool = True,
    ) -> list[tuple[list[Prediction], Vector | None]]:
        """Predict what at most `batch_size` images show; those of one input size run together.

        Args:
            images: The images.
            options: Options of each image.
            with_embedding: Whether embeddings are wanted; without them there may be none.

        Returns:
            Predictions and embedding of each image, in order; for an image in tiles the mean of their embeddings.

        Raises:
            OutputError: The outputs are not what the specification says.
            ParameterError: Tiling makes too many tiles.
            RunError: The graph failed.
        """
        untiled = [
            (image, option.task)
            for image, option in zip(images, options, strict=True)
            if option.tiling is None
        ]
        predicted = iter(
            self._run_and_read(untiled, self._task.predict, with_embedding=with_embedding)
        )
        return [
            next(predicted)
            if option.tiling is None
            else self._predict_tiles(image, option, option.tiling, with_embedding=with_embedding)
            for image, option in zip(images, options, strict=True)
        ]

    def format_predictions(
        self, predictions: Any, options: ImageOptions, width: int, height: int
    ) -> Any:
        """Write the predictions for an image of that size, in pixels, in the requested format.

        Raises:
            ParameterError: They cannot be written in it.
        """
        if not options.legacy_format:
            return predictions
        return legacy(predictions, options.action, self._spec, width=width, height=height)

    def embed(self, image: Image) -> Vector | None:
        """Return the embedding of an image, whatever it shows; None where the model has none."""
        return self._rows([self._task.preprocess(image)])[0][1]

    def detect(self, image: Image, options: ImageOptions) -> Any:
        """Return the candidates of an image in one piece, not clipped to it; None for a task without them."""
        if self._tiled_task is None:
            return None
        ((candidates, _),) = self._run_and_read(
            [(image, options.task)], self._tiled_task.detect, with_embedding=False
        )
        return candidates

    def outputs_for(self, image: Image) -> Mapping[str, npt.NDArray[Any]]:
        """Return what the graph outputs for an image, without the batch axis."""
        return self._rows([self._task.preprocess(image)], with_embedding=False)[0][0]

    def _predict_tiles(
        self, image: Image, options: ImageOptions, tiling: Tiling, *, with_embedding: bool
    ) -> tuple[list[Prediction], Vector | None]:
        """Predict what an image shows tile by tile, and merge predictions over the borders."""
        task = self._tiled_task
        assert task is not None, "read_options refuses tiling for other tasks"
        if (count := self.count_tiles(image, options)) > MAX_TILES:
            raise ParameterError(
                f"expected tiling to cut the image of {image.width} x {image.height} into at most "
                f"{MAX_TILES} tiles, got {count}: a larger size or less overlap makes fewer"
            )
        image_tiles, tile_images = _tiles(image, tiling)
        detected: list[tuple[Any, Vector | None]] = []
        size = abs(self.batch_size)
        for start in range(0, len(tile_images), size):
            chunk = tile_images[start : start + size]
            record_preparation()
            items = [(tile, options.task) for tile in chunk]
            detected += self._run_and_read(items, task.detect, with_embedding=with_embedding)
        detections = [detections for detections, _ in detected]
        merged = task.merge(list(zip(image_tiles, detections, strict=True)), tiling, options.task)
        predictions = task.to_predictions(merged, image.width, image.height, options.task)
        return predictions, mean_vector([vector for _, vector in detected])

    def _run_and_read(
        self,
        items: Sequence[tuple[Image, Any]],
        reader: Callable[[Mapping[str, npt.NDArray[Any]], Affine, Any], Read],
        *,
        with_embedding: bool,
    ) -> list[tuple[Read, Vector | None]]:
        """Run images, those of one input size together, and read outputs and embedding of each, with its options."""
        prepared = [self._task.preprocess(image) for image, _ in items]
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, (tensor, _) in enumerate(prepared):
            by_shape.setdefault(tensor.shape, []).append(index)
        results: dict[int, tuple[Read, Vector | None]] = {}
        for indices in by_shape.values():
            rows = self._run_rows(
                [prepared[index] for index in indices], with_embedding=with_embedding
            )
            for index, (outputs, vector) in zip(indices, rows, strict=True):
                affine, (_, options) = prepared[index][1], items[index]
                try:
                    results[index] = reader(outputs, affine, options), vector
                except OutputError as error:
                    raise OutputError(f"{error}; {self._reading(outputs, affine)}") from error
        return [results[index] for index in range(len(items))]

    def _run_rows(
        self, items: Sequence[PreparedImage], *, with_embedding: bool
    ) -> list[tuple[Outputs, Vector | None]]:
        """Run images of one input size, and return outputs and embedding of each; one by one if together they fail."""
        if len(items) > 1:
            try:
                if len(items) <= abs(self.batch_size):
                    return self._rows(items, with_embedding=with_embedding)
            except (RunError, OutputError) as error:
                rows = [self._rows([item], with_embedding=with_embedding)[0] for item in items]
                self._run_one_by_one(f"the graph fails on {len(items)} images at once: {error}")
                return rows
        return [row for item in items for row in self._rows([item], with_embedding=with_embedding)]

    def _run_one_by_one(self, reason: str) -> None:
        _log.warning("%s: images run one by one: %s", self._session.path.parent.name, reason)
        self.one_by_one, self.batch_size = reason, 1 if self.batch_size > 0 else -1

    def _rows(
        self, items: Sequence[PreparedImage], *, with_embedding: bool = True
    ) -> list[tuple[Outputs, Vector | None]]:
        """Run images of one input size together, and return outputs and embedding of each, without the batch axis.

        A batch that the file fixes is filled up.
        """
        feeds = self._feeds(items)
        # Requests share runs of the same outputs only, so there the embedding is always one of them.
        is_shared = self._session.batched_runs is not None
        vectors: list[Vector | None] = [None] * len(items)
        if not self._embedding or not (with_embedding or is_shared):
            outputs = self._session.run(feeds, batch=len(items))
        else:
            outputs = self._session.run(feeds, self._outputs, len(items))
            size = max(len(items), self._filled)
            vectors = pool_vectors(outputs[self._embedding], size)[: len(items)]
        read = self._without_maps({name: outputs[name] for name in self._read_outputs})
        if not self._has_rows:
            return [(read, vector) for vector in vectors]
        for name, array in read.items():
            if not array.ndim or len(array) < len(items):
                raise OutputError(
                    f"expected output {name!r} to have the {len(items)} images as its first axis, got the "
                    f"shape {array.shape}: without that axis, batch_axis = false in model.toml, [output]"
                )
        return [
            ({name: array[row] for name, array in read.items()}, vector)
            for row, vector in enumerate(vectors)
        ]

    def _without_maps(self, outputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the scores of maps from classes to scores as float32 (N, classes); other outputs as they are."""
        if not self._maps:
            return outputs
        classes = self._session.header.class_labels[0]
        rows = [{str(key): value for key, value in row.items()} for row in outputs[self._maps]]
        scores = [[row[key] for key in classes] for row in rows]
        return {self._maps: np.array(scores, np.float32)}

    def _feeds(self, items: Sequence[PreparedImage]) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of the graph for a batch; one that the file fixes is filled up."""
        spec = self._spec.input
        tensors = [tensor for tensor, _ in items]
        tensors.extend(tensors[:1] * (self._filled - len(tensors)))
        if not spec.batch_axis:
            batch = tensors[0]
        else:
            batch = np.stack(tensors) if len(tensors) > 1 else tensors[0][None]
        feeds = {spec.name: batch}
        _, affine = items[0]
        if spec.size_input:
            kind = NUMPY_TYPES[self._inputs[spec.size_input].datatype]
            feeds[spec.size_input] = np.array([affine.network_wh] * len(tensors), kind)
        for name, value in (spec.constants or {}).items():
            shape, kind = list(self._inputs[name].shape), NUMPY_TYPES[self._inputs[name].datatype]
            if spec.batch_axis and shape[:1] == [-1]:
                shape[0] = len(tensors)
            open_axes = [axis for axis, size in enumerate(shape) if size < 0]
            sides = [1] * (len(open_axes) - 2) + [*affine.network_wh[::-1]]
            for axis, side in zip(open_axes, sides if len(open_axes) > 1 else [1], strict=False):
                shape[axis] = side
            feeds[name] = np.full(shape, value, kind)
        return feeds

    def feeds_of(self, image: Image) -> list[dict[str, npt.NDArray[Any]]]:
        """Return the inputs of the runs that an image needs with the model's own options: one, or one for each tile."""
        tiling = self._spec.tiling
        images = [image] if tiling is None else _tiles(image, tiling)[1]
        return [self._feeds([self._task.preprocess(part)]) for part in images]

    def example_feeds(self, count: int) -> list[dict[str, npt.NDArray[Any]]]:
        """Return the inputs of the graph for images of noise, each a run of one image."""
        images = [noise(self._spec.input, seed) for seed in range(count)]
        return [self._feeds([self._task.preprocess(image)]) for image in images]

    def run_feeds(self, feeds: Mapping[str, npt.NDArray[Any]]) -> None:
        """Run the graph once as for predictions, and drop its outputs: for measurements."""
        self._session.run(feeds, self._outputs if self._embedding else ())

    def warm_up(self) -> Vector | None:
        """Run on a gray and a dark noisy image, alone and together, and read both as predictions.

        The first request is then fast, and a wrong model fails here. Images run one by one from now on if the graph
        answers them otherwise together.

        Raises:
            LoadError: The graph fails, or its outputs are not what the specification says.
        """
        images = plain(self._spec.input), noise(self._spec.input)
        prepared = [self._task.preprocess(image) for image in images]
        try:
            rows = [self._rows([item], with_embedding=True)[0] for item in prepared]
            self._check_reading([outputs for outputs, _ in rows], prepared)
        except RunError as error:
            raise LoadError(f"the model fails on a gray or a noisy image: {error}") from error
        except OutputError as error:
            raise LoadError(f"the model's outputs do not fit its task: {error}") from error
        self._try_together(prepared, [outputs for outputs, _ in rows])
        name = next(iter(rows[0][0]))
        scores = [outputs[name] for outputs, _ in rows]
        if self._spec.task == "IMAGE_CLASSIFICATION":
            self.scored_by = self._session.header.producers.get(name, "")
            if scores[0].size == 1 and self.scored_by == "Softmax":
                raise LoadError(
                    f"expected more than one score in {name!r}, got the Softmax of one, which is always 1: export it with "
                    "a Sigmoid"
                )
            is_softmax = self._spec.output.activation == "softmax"
            self.is_activated = is_softmax and all(_sum_to(1, array) for array in scores)
            if is_softmax and all(_sum_to(100, array) for array in scores):
                raise LoadError(
                    f"expected logits or probabilities in {name!r}, got scores that sum to 100: export it without the "
                    "factor that makes them percent"
                )
        _, vector = rows[0]
        if vector is None:
            self._embedding = ""
        return vector

    def unread_outputs(self) -> list[str]:
        """Return the names of the graph's outputs that neither predictions nor the embedding come from."""
        prepared = self._task.preprocess(noise(self._spec.input))
        ((outputs, _),) = self._rows([prepared], with_embedding=False)
        _, affine = prepared

        def is_read(name: str) -> bool:
            try:
                changed: dict[str, Any] = {**outputs, name: None}
                self._task.predict(changed, affine, self._task.options({}))
            except Exception:  # noqa: BLE001 - a decoder of anybody fails on None in its own way
                return True
            return False

        names = [info.name for info in self._session.outputs if info.name != self._embedding]
        return [name for name in names if name not in outputs or not is_read(name)]

    def _check_reading(
        self, outputs_of_images: Sequence[Outputs], prepared: Sequence[PreparedImage]
    ) -> None:
        """Read the outputs of images, and check the scores of all candidates, however low.

        Raises:
            OutputError: They are not what the specification says.
        """
        has_rows = self._has_rows
        for outputs, (_, affine) in zip(outputs_of_images, prepared, strict=True):
            try:
                _read(self._task, outputs, affine)
            except OutputError as error:
                # batch_axis = false may also stand for a graph that takes one image alone
                if not has_rows and all(array.shape[:1] == (1,) for array in outputs.values()):
                    with suppress(OutputError):
                        row = {name: array[0] for name, array in outputs.items()}
                        _read(self._task, row, affine)
                        self._has_rows = True
                        continue
                raise OutputError(f"{error}; {self._reading(outputs, affine)}") from error

    def _try_together(self, prepared: Sequence[PreparedImage], alone: Sequence[Outputs]) -> None:
        """Let images run one by one if two together fail, or are answered otherwise than alone."""
        if abs(self.batch_size) == 1:
            return
        is_exact = self._session.providers[:1] == (CPU,)
        try:
            together = self._rows(prepared, with_embedding=False)
        except (RunError, OutputError, ModelNotReady) as error:
            self._rows(prepared[:1], with_embedding=False)  # fails if its process has ended
            self._run_one_by_one(f"the graph fails on two images at once: {error}")
            return
        for outputs, (beside, _) in zip(alone, together, strict=True):
            for name, array in outputs.items():
                is_half = array.dtype == np.float16 or not is_exact
                tolerance = HALF_MIXING_TOLERANCE if is_half else MIXING_TOLERANCE
                if _differs(array, beside[name], tolerance):
                    self._run_one_by_one(
                        f"output {name!r} of an image changes with the other images of its batch"
                    )
                    return

    def _reading(self, outputs: Outputs, affine: Affine) -> str:
        """Say how the outputs were read, and which other families they fit."""
        if self._alternatives is None:
            self._alternatives = self._fitting_families(outputs, affine)
        how = f"family {self._family}" if self._family else f"decoder {self._spec.output.decoder}"
        if not self._alternatives:
            return (
                f'they were read as {how}; task = "tensor" in model.toml serves tensors as they are'
            )
        lines = " or ".join(f'family = "{name}"' for name in self._alternatives)
        return f"they were read as {how}, and fit others: write {lines} in model.toml"

    def _fitting_families(self, outputs: Outputs, affine: Affine) -> list[str]:
        """Return the other families that read the outputs of an image without an error."""
        fitting = []
        current = self._spec.output
        for name, family in FAMILIES.items():
            output = OutputSpec(**family.output)
            if not output.decoder or (output.decoder, output.label_offset) == (
                current.decoder,
                current.label_offset,
            ):
                continue
            spec = msgspec.structs.replace(self._spec, task=family.task, output=output)
            with suppress(Exception):  # a decoder may fail on outputs of others in any way
                task: Task = resolve(family.task, TASKS, "a task")(spec)
                _read(task, outputs, affine)
                position, axis, extra = family.classes or (0, 0, 0)
                columns = [*outputs.values()][position].shape[axis - 1]
                if family.classes is None or columns - extra == len(spec.labels):
                    fitting.append(name)
        return fitting


def pool_vectors(array: npt.NDArray[Any], rows: int) -> list[Vector | None]:
    """Pool an output to one vector per image.

    Args:
        array: (N, D), (N, T, D) as tokens or (N, D, H, W) as maps, of any floating type.
        rows: The expected N.

    Returns:
        One vector per image; None for all if the array has another shape, and for an image whose vector is not
        finite.
    """
    if array.ndim not in (2, 3, 4) or len(array) != rows or array.dtype.kind != "f":
        return [None] * rows
    with np.errstate(all="ignore"):  # vectors that are not finite are dropped below
        if array.shape[2:] == (1, 1):
            array = array.reshape(rows, -1)
        elif array.ndim > 2:
            array = array.mean(1 if array.ndim == 3 else (2, 3), dtype=np.float32)
        vectors = [np.array(row, np.float32) for row in array]
    fits = 0 < array.shape[1] <= MAX_EMBEDDING_LENGTH
    return [vector if fits and np.isfinite(vector).all() else None for vector in vectors]


def mean_vector(vectors: Sequence[Vector | None]) -> Vector | None:
    """Return the mean of the embeddings of an image's tiles; None if one is missing."""
    present = [vector for vector in vectors if vector is not None]
    return np.mean(present, axis=0) if present and len(present) == len(vectors) else None


def wants_legacy(parameters: Mapping[str, Any], task: str) -> bool:
    """Tell whether `output_format` is `legacy`.

    Raises:
        ParameterError: The task has only the format of the protocol.
    """
    is_legacy = choice(parameters, "output_format", FORMATS) == "legacy"
    if is_legacy and task not in TASKS:
        raise ParameterError(f"expected parameters.output_format to be protocol for {task}")
    return is_legacy


def decode_image(
    data: bytes, spec: InputSpec, max_pixels: int, budget: Budget | None = None
) -> Image:
    """Decode an image file with the channels, bits and orientation that a network's input takes.

    Raises:
        quadriga.tasks.image.ImageError: It cannot be decoded, or not as the input takes it.
        quadriga.tasks.parameters.BudgetError: It has more pixels than the budget.
    """
    image = decode(
        data,
        channels=spec.channels,
        bit_depth=spec.bit_depth,
        exif=spec.exif,
        max_pixels=max_pixels,
        budget=budget,
    )
    check_shape(image.width, image.height, spec)
    return image


def _tiles(image: Image, tiling: Tiling) -> tuple[list[PixelRect], list[Image]]:
    """Cut an image: return the places of the tiles, and the tiles as images."""
    places = tiles(image.width, image.height, tiling.size, tiling.overlap)
    return places, [
        msgspec.structs.replace(image, pixels=place.cut(image.pixels)) for place in places
    ]


def _read(task: Task, outputs: Outputs, affine: Affine) -> None:
    """Read the outputs of an image, and the scores of all candidates, however low.

    Raises:
        OutputError: They are not what the task expects.
    """
    task.predict(outputs, affine, task.options({}))
    if isinstance(task, ObjectDetection):
        task.check_all(outputs, affine)


def _differs(alone: npt.NDArray[Any], beside: npt.NDArray[Any], tolerance: float) -> bool:
    """Check whether two outputs differ by more than rounding, which may change the order of equal scores."""
    if alone.shape == beside.shape and alone.dtype.kind in "iu":
        return bool(np.mean(np.sort(alone, axis=None) != np.sort(beside, axis=None)) > _MAX_FLIPPED)
    if alone.dtype.kind == "f":
        alone, beside = np.sort(alone, axis=None), np.sort(beside, axis=None)
    return largest_difference(alone, beside) > tolerance


def _sum_to(total: float, scores: npt.NDArray[Any]) -> bool:
    """Check whether several numbers add up to a total, as probabilities of classes that exclude each other do to 1."""
    return bool(
        scores.size > 1
        and scores.min() >= 0
        and abs(scores.sum(dtype=np.float64) / total - 1) < _SUM_ROUNDING
    )


def _parse_tiling(value: Any) -> Tiling:
    try:
        return msgspec.convert(value, Tiling)
    except msgspec.ValidationError as error:
        text = f"expected parameters.tiling to be false or an object: {explain_validation_error(error, Tiling)}"
        raise ParameterError(text) from error
