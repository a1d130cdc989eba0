"""A model of one graph that takes images: from decoded images to predictions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from quadriga.engine.embedding import Vector, mean, pool
from quadriga.engine.schema import explain
from quadriga.engine.session import LoadError, RunError, Session
from quadriga.tasks import TASKS, Task, TiledTask
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError
from quadriga.tasks.predictions import OutputError, Prediction
from quadriga.tasks.references import ObjectReferenceError, resolve
from quadriga.tasks.resize import Affine, plain
from quadriga.tasks.specification import ModelSpec, Tiling
from quadriga.tasks.tiling import count_tiles, tiles

Read = TypeVar("Read")

_MOST_TILES = 10_000
"""Of one image; 50 megapixels in tiles of 128 x 128 with an overlap of 0.2 are half of it."""


Prepared = tuple[npt.NDArray[Any], Affine]
"""One image as the network takes it, and the way back."""


class ImageOptions(msgspec.Struct, frozen=True):
    """What a request asks of one image."""

    action: str
    task: Any
    """As the task reads it."""
    tiling: Tiling | None


class ImageGraph:
    """Answers images; safe to use from many threads.

    `max_batch` images run together where the file leaves the number open; `embedding` names the session's
    output that is the embedding, if any.
    """

    def __init__(self, session: Session, spec: ModelSpec, max_batch: int, embedding: str) -> None:
        self._session = session
        self._embedding = embedding
        self._asked = [tensor.name for tensor in (*session.outputs, session.hidden) if tensor]
        self.stopwatch = session.stopwatch
        self._spec = spec
        self.batch_size = -1
        """How many images run together; negative where the file fixes the number."""
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

    def options(self, parameters: Mapping[str, Any]) -> ImageOptions:
        """Validate the parameters of one input."""
        options = self._task.options(parameters)
        tiling = self._spec.tiling
        if (written := parameters.get("tiling")) is not None:
            tiling = None if written is False else _tiling(written)
        if tiling is not None and not isinstance(self._task, TiledTask):
            raise ParameterError(f"expected no parameters.tiling for {self._spec.task}, got one")
        return ImageOptions(options.action, options, tiling)

    def answer(
        self, images: Sequence[Image], options: Sequence[ImageOptions]
    ) -> list[tuple[list[Prediction], Vector | None]]:
        """Answer at most `batch_size` images in their order; those of one input size run together.

        Returns:
            Predictions and embedding of each; of an image in tiles the mean of their embeddings.

        Raises:
            OutputError: The outputs are not what the specification says.
            ParameterError: Tiling makes too many tiles.
            RunError: The graph failed.
        """
        whole = [number for number, each in enumerate(options) if each.tiling is None]
        read = self._read(
            [images[n] for n in whole], [options[n].task for n in whole], self._task.predict
        )
        answers = dict(zip(whole, read, strict=True))
        for number, each in enumerate(options):
            if each.tiling is not None:
                answers[number] = self._in_tiles(images[number], each.task, each.tiling)
        return [answers[number] for number in range(len(images))]

    def embed(self, image: Image) -> Vector | None:
        """Give the embedding of an image, whatever it shows; None where there is none."""
        return self._run([self._task.preprocess(image)])[1][0]

    def _in_tiles(
        self, image: Image, options: Any, tiling: Tiling
    ) -> tuple[list[Prediction], Vector | None]:
        """Answer an image by its parts: what each tile has, joined over the borders."""
        task = self._task
        if not isinstance(task, TiledTask):
            raise TypeError(f"task {self._spec.task} cannot read tiles")
        count = count_tiles(image.width, image.height, tiling.size, tiling.overlap)
        if count > _MOST_TILES:
            raise ParameterError(
                f"expected tiling to cut the image of {image.width} x {image.height} into at most "
                f"{_MOST_TILES} tiles, got {count}: a larger size or less overlap makes fewer"
            )
        places = tiles(image.width, image.height, tiling.size, tiling.overlap)
        parts = [msgspec.structs.replace(image, pixels=each.cut(image.pixels)) for each in places]
        found: list[Any] = []
        size = abs(self.batch_size)
        for start in range(0, len(parts), size):
            chunk = parts[start : start + size]
            self.stopwatch.prepares()
            found.extend(self._read(chunk, [options] * len(chunk), task.read_tile))
        tiled = [read for read, _ in found]
        joined = task.merge_tiles(list(zip(places, tiled, strict=True)), tiling, options)
        predictions = task.to_predictions(joined, image.width, image.height, options)
        return predictions, mean([vector for _, vector in found])

    def _read(
        self,
        images: Sequence[Image],
        options: Sequence[Any],
        reader: Callable[[Mapping[str, npt.NDArray[Any]], Affine, Any], Read],
    ) -> list[tuple[Read, Vector | None]]:
        """Run images, those of one input size together, and read the outputs and embedding of each."""
        prepared = [self._task.preprocess(image) for image in images]
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, (tensor, _) in enumerate(prepared):
            groups.setdefault(tensor.shape, []).append(number)
        by_row = self._spec.output.batch_axis
        read: dict[int, tuple[Read, Vector | None]] = {}
        for numbers in groups.values():
            outputs, vectors = self._run([prepared[number] for number in numbers])
            for name, array in outputs.items():
                if by_row and (not array.ndim or len(array) < len(numbers)):
                    raise OutputError(
                        f"expected output {name!r} to have the {len(numbers)} images as its first axis, got the "
                        f"shape {array.shape}: without that axis, batch_axis = false in model.toml, [output]"
                    )
            for row, number in enumerate(numbers):
                mine = {n: array[row] for n, array in outputs.items()} if by_row else outputs
                read[number] = reader(mine, prepared[number][1], options[number]), vectors[row]
        return [read[number] for number in range(len(prepared))]

    def _run(
        self, items: Sequence[Prepared]
    ) -> tuple[dict[str, npt.NDArray[Any]], list[Vector | None]]:
        """Run one batch of images of one input size; a batch that the file fixes is filled up."""
        spec = self._spec.input
        tensors = [tensor for tensor, _ in items]
        tensors.extend(tensors[:1] * (-self.batch_size - len(tensors)))
        feeds = {spec.name: np.stack(tensors) if spec.batch_axis else tensors[0]}
        if spec.size_input:
            _, affine = items[0]
            feeds[spec.size_input] = np.array([affine.network_wh] * len(tensors), np.int64)
        if not self._embedding:
            return self._session.run(feeds, batch=len(items)), [None] * len(items)
        outputs = self._session.run(feeds, self._asked, len(items))
        embedded = outputs[self._embedding]
        if self._session.hidden is not None:
            del outputs[self._embedding]
        return outputs, pool(embedded, len(tensors))

    def warm_up(self) -> Vector | None:
        """Answer a gray image: the first request is then fast, and a wrong model fails here."""
        try:
            ((_, vector),) = self.answer([plain(self._spec.input)], [self.options({})])
        except RunError as error:
            raise LoadError(f"the model fails on a gray image: {error}") from error
        except OutputError as error:
            raise LoadError(f"the model's outputs do not fit its task: {error}") from error
        if vector is None:
            self._embedding = ""
        return vector


def _tiling(written: Any) -> Tiling:
    try:
        return msgspec.convert(written, Tiling)
    except msgspec.ValidationError as error:
        text = f"expected parameters.tiling to be false or an object: {explain(error, Tiling)}"
        raise ParameterError(text) from error
