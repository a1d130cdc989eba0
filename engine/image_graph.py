"""A model of one graph that takes images: from decoded images to predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.session import LoadError, RunError, Session
from tasks import TASKS, Task
from tasks.image import Image
from tasks.predictions import OutputError, Prediction
from tasks.references import resolve
from tasks.resize import Affine
from tasks.specification import ModelSpec


class _Prepared(msgspec.Struct, frozen=True, eq=False):
    """One image, ready for the network."""

    tensor: npt.NDArray[Any]
    affine: Affine
    options: Any


class ImageGraph:
    """Answers images; safe to use from many threads.

    Args:
        session: The graph.
        spec: What its input and outputs mean.
        max_batch: Images that run together, where the file leaves the number open.
    """

    def __init__(self, session: Session, spec: ModelSpec, max_batch: int) -> None:
        self._session = session
        self._spec = spec
        self._max_batch = max_batch
        self._task: Task = resolve(spec.task, TASKS, "a task")(spec)

    @property
    def batch_size(self) -> int:
        """How many images run together; negative where the file fixes the number."""
        if not (self._spec.output.batch_axis and self._spec.input.batch_axis):
            return -1
        name = self._spec.input.name
        axis = next(tensor.shape[0] for tensor in self._session.inputs if tensor.name == name)
        return self._max_batch if axis < 0 else -axis

    def options(self, parameters: Mapping[str, Any]) -> Any:
        """Validate the parameters of one input.

        Raises:
            tasks.parameters.ParameterError: An action is unknown or a value out of range.
        """
        return self._task.options(parameters)

    def predict(self, images: Sequence[Image], options: Sequence[Any]) -> list[list[Prediction]]:
        """Answer at most `batch_size` images in their order; those of one input size run together.

        Raises:
            OutputError: The outputs are not what the specification says.
            RunError: The graph failed.
        """
        prepared = [
            _Prepared(*self._task.preprocess(image), each)
            for image, each in zip(images, options, strict=True)
        ]
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, item in enumerate(prepared):
            groups.setdefault(item.tensor.shape, []).append(number)
        predictions: dict[int, list[Prediction]] = {}
        for numbers in groups.values():
            outputs = self._run([prepared[number] for number in numbers])
            for row, number in enumerate(numbers):
                item = prepared[number]
                mine = outputs
                if self._spec.output.batch_axis:
                    mine = {name: array[row] for name, array in outputs.items()}
                predictions[number] = self._task.predict(mine, item.affine, item.options)
        return [predictions[number] for number in range(len(prepared))]

    def _run(self, items: Sequence[_Prepared]) -> dict[str, npt.NDArray[Any]]:
        """Run one batch of images of one input size; a batch that the file fixes is filled up."""
        spec = self._spec.input
        tensors = [item.tensor for item in items]
        tensors.extend(tensors[:1] * (-self.batch_size - len(tensors)))
        feeds = {spec.name: np.stack(tensors) if spec.batch_axis else tensors[0]}
        if spec.size_input:
            sizes = [items[0].affine.network_wh] * len(tensors)
            feeds[spec.size_input] = np.array(sizes, np.int64)
        return self._session.run(feeds)

    def warm_up(self) -> None:
        """Answer a gray image, so that the first request is fast and a wrong model fails here.

        Raises:
            LoadError: The graph fails, or its outputs do not fit the task.
        """
        width, height = self._spec.input.size_wh
        gray = Image(np.full((height, width, 3), 114, np.uint8))
        try:
            self.predict([gray], [self.options({})])
        except RunError as error:
            raise LoadError(f"the model fails on a gray image: {error}") from error
        except OutputError as error:
            raise LoadError(f"the model's outputs do not fit its task: {error}") from error
