"""A model of one graph that takes images: from image files to predictions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.embedding import Vector, mean_vector, pool_vectors
from quadriga.engine.schema import explain_validation_error
from quadriga.engine.session import LoadError, RunError, Session
from quadriga.tasks import TASKS, Task, TiledTask
from quadriga.tasks.budget import Budget
from quadriga.tasks.image import Image, decode
from quadriga.tasks.legacy import legacy, wants_legacy
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import OutputError, Prediction
from quadriga.tasks.references import ObjectReferenceError, resolve
from quadriga.tasks.resize import Affine, check_shape, plain
from quadriga.tasks.specification import InputSpec, ModelSpec, Tiling
from quadriga.tasks.tiling import count_tiles, tiles

Read = TypeVar("Read")

MAX_TILES = 10_000
"""Maximum tiles of one image; 50 megapixels in tiles of 128 x 128 with an overlap of 0.2 make half as many."""

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
    """

    def __init__(self, session: Session, spec: ModelSpec, max_batch: int, embedding: str) -> None:
        self._session = session
        self._embedding = embedding
        self._outputs = [
            tensor.name for tensor in (*session.outputs, session.hidden_output) if tensor
        ]
        names = spec.output.name or [tensor.name for tensor in session.outputs]
        self._read_outputs = (names,) if isinstance(names, str) else names
        self.stopwatch = session.stopwatch
        self._spec = spec
        self.task = spec.task
        self.batch_size = -1
        """Images that run together; negative where the file fixes the number."""
        if spec.output.batch_axis and spec.input.batch_axis:
            shapes = {tensor.name: tensor.shape for tensor in session.inputs}
            axis = shapes[spec.input.name][0]
            self.batch_size = max_batch if axis < 0 else -axis
        try:
            self._task: Task = resolve(spec.task, TASKS, "a task")(spec)
        except ObjectReferenceError as error:
            raise LoadError(
                f"{error}; install its package, or name its folder by the setting extensions"
            ) from error
        self._tiled_task = self._task if isinstance(self._task, TiledTask) else None

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
        untiled = [index for index, option in enumerate(options) if option.tiling is None]
        predicted = self._run_and_read(
            [images[index] for index in untiled],
            [options[index].task for index in untiled],
            self._task.predict,
            with_embedding=with_embedding,
        )
        by_index = dict(zip(untiled, predicted, strict=True))
        for index, option in enumerate(options):
            if option.tiling is not None:
                by_index[index] = self._predict_tiles(
                    images[index], option.task, option.tiling, with_embedding=with_embedding
                )
        return [by_index[index] for index in range(len(images))]

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
        return self._run([self._task.preprocess(image)])[1][0]

    def detect(self, image: Image, options: ImageOptions) -> Any:
        """Return the candidates of an image in one piece, not clipped to it; None for a task without them."""
        if self._tiled_task is None:
            return None
        ((candidates, _),) = self._run_and_read(
            [image], [options.task], self._tiled_task.detect, with_embedding=False
        )
        return candidates

    def outputs_for(self, image: Image) -> Mapping[str, npt.NDArray[Any]]:
        """Return what the graph outputs for an image, without the batch axis."""
        tensor, affine = self._task.preprocess(image)
        outputs, _ = self._run([(tensor, affine)], with_embedding=False)
        if not self._spec.output.batch_axis:
            return outputs
        return {name: array[0] for name, array in outputs.items()}

    def _predict_tiles(
        self, image: Image, options: Any, tiling: Tiling, *, with_embedding: bool
    ) -> tuple[list[Prediction], Vector | None]:
        """Predict what an image shows tile by tile, and merge predictions over the borders."""
        task = self._tiled_task
        assert task is not None, "read_options refuses tiling for other tasks"
        count = count_tiles(image.width, image.height, tiling.size, tiling.overlap)
        if count > MAX_TILES:
            raise ParameterError(
                f"expected tiling to cut the image of {image.width} x {image.height} into at most "
                f"{MAX_TILES} tiles, got {count}: a larger size or less overlap makes fewer"
            )
        image_tiles = tiles(image.width, image.height, tiling.size, tiling.overlap)
        tile_images = [
            msgspec.structs.replace(image, pixels=tile.cut(image.pixels)) for tile in image_tiles
        ]
        detected: list[tuple[Any, Vector | None]] = []
        size = abs(self.batch_size)
        for start in range(0, len(tile_images), size):
            chunk = tile_images[start : start + size]
            self.stopwatch.record_preparation()
            detected.extend(
                self._run_and_read(
                    chunk, [options] * len(chunk), task.detect, with_embedding=with_embedding
                )
            )
        detections = [detections for detections, _ in detected]
        merged = task.merge(list(zip(image_tiles, detections, strict=True)), tiling, options)
        predictions = task.to_predictions(merged, image.width, image.height, options)
        return predictions, mean_vector([vector for _, vector in detected])

    def _run_and_read(
        self,
        images: Sequence[Image],
        options: Sequence[Any],
        reader: Callable[[Mapping[str, npt.NDArray[Any]], Affine, Any], Read],
        *,
        with_embedding: bool,
    ) -> list[tuple[Read, Vector | None]]:
        """Run images, those of one input size together, and read outputs and embedding of each."""
        prepared = [self._task.preprocess(image) for image in images]
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, (tensor, _) in enumerate(prepared):
            groups.setdefault(tensor.shape, []).append(index)
        has_rows = self._spec.output.batch_axis
        by_index: dict[int, tuple[Read, Vector | None]] = {}
        for indices in groups.values():
            outputs, vectors = self._run(
                [prepared[index] for index in indices], with_embedding=with_embedding
            )
            for name, array in outputs.items():
                if has_rows and (not array.ndim or len(array) < len(indices)):
                    raise OutputError(
                        f"expected output {name!r} to have the {len(indices)} images as its first axis, got the "
                        f"shape {array.shape}: without that axis, batch_axis = false in model.toml, [output]"
                    )
            for row, index in enumerate(indices):
                image_outputs = outputs
                if has_rows:
                    image_outputs = {name: array[row] for name, array in outputs.items()}
                _, affine = prepared[index]
                by_index[index] = reader(image_outputs, affine, options[index]), vectors[row]
        return [by_index[index] for index in range(len(prepared))]

    def _run(
        self, items: Sequence[PreparedImage], *, with_embedding: bool = True
    ) -> tuple[dict[str, npt.NDArray[Any]], list[Vector | None]]:
        """Run one batch of images of one input size; a batch that the file fixes is filled up."""
        feeds = self._feeds(items)
        # Requests share runs of the same outputs only, so there the embedding is always one of them.
        is_shared = self._session.batched_runs is not None
        vectors: list[Vector | None] = [None] * len(items)
        if not self._embedding or not (with_embedding or is_shared):
            outputs = self._session.run(feeds, batch=len(items))
        else:
            outputs = self._session.run(feeds, self._outputs, len(items))
            size = max(len(items), -self.batch_size)
            vectors = pool_vectors(outputs[self._embedding], size)
        return {name: outputs[name] for name in self._read_outputs}, vectors

    def _feeds(self, items: Sequence[PreparedImage]) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of the graph for a batch; one that the file fixes is filled up."""
        spec = self._spec.input
        tensors = [tensor for tensor, _ in items]
        tensors.extend(tensors[:1] * (-self.batch_size - len(tensors)))
        if not spec.batch_axis:
            batch = tensors[0]
        else:
            batch = np.stack(tensors) if len(tensors) > 1 else tensors[0][None]
        feeds = {spec.name: batch}
        if spec.size_input:
            _, affine = items[0]
            feeds[spec.size_input] = np.array([affine.network_wh] * len(tensors), np.int64)
        return feeds

    def feeds_of(self, image: Image) -> list[dict[str, npt.NDArray[Any]]]:
        """Return the inputs of the runs that an image needs with the model's own options: one, or one for each tile."""
        tiling = self._spec.tiling
        images = [image]
        if tiling is not None:
            parts = tiles(image.width, image.height, tiling.size, tiling.overlap)
            images = [
                msgspec.structs.replace(image, pixels=part.cut(image.pixels)) for part in parts
            ]
        return [self._feeds([self._task.preprocess(part)]) for part in images]

    def example_feeds(self, count: int) -> list[dict[str, npt.NDArray[Any]]]:
        """Return the inputs of the graph for images of noise, each a run of one image."""
        random = np.random.default_rng(0)
        image = plain(self._spec.input)
        examples = []
        for _ in range(count):
            shape, kind = image.pixels.shape, image.pixels.dtype
            noise = random.integers(0, 1 << image.bit_depth, shape, kind)
            examples.append(
                self._feeds([self._task.preprocess(msgspec.structs.replace(image, pixels=noise))])
            )
        return examples

    def run_feeds(self, feeds: Mapping[str, npt.NDArray[Any]]) -> None:
        """Run the graph once as for predictions, and drop its outputs: for measurements."""
        self._session.run(feeds, self._outputs if self._embedding else ())

    def warm_up(self) -> Vector | None:
        """Run on a gray image: the first request is then fast, and a wrong model fails here."""
        try:
            ((_, vector),) = self.predict([plain(self._spec.input)], [self.read_options({})])
        except RunError as error:
            raise LoadError(f"the model fails on a gray image: {error}") from error
        except OutputError as error:
            raise LoadError(f"the model's outputs do not fit its task: {error}") from error
        if vector is None:
            self._embedding = ""
        return vector


def decode_image(
    data: bytes, spec: InputSpec, max_pixels: int, budget: Budget | None = None
) -> Image:
    """Decode an image file with the channels, bits and orientation that a network's input takes.

    Raises:
        quadriga.tasks.image_formats.ImageError: It cannot be decoded, or not as the input takes it.
        quadriga.tasks.budget.BudgetError: It has more pixels than the budget.
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


def _parse_tiling(value: Any) -> Tiling:
    try:
        return msgspec.convert(value, Tiling)
    except msgspec.ValidationError as error:
        text = f"expected parameters.tiling to be false or an object: {explain_validation_error(error, Tiling)}"
        raise ParameterError(text) from error
