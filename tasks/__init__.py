"""Images in, predictions out: pure numpy, OpenCV and Pillow, one file per task.

A task is made from a model's specification and has no other state: `options` validates the parameters of a
request, `preprocess` turns an image into the input tensor and an affine map for the way back, `predict`
turns the model's outputs for that image into predictions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from quadriga.tasks.image import Image
from quadriga.tasks.predictions import OutputError, Outputs, Prediction
from quadriga.tasks.resize import Affine, PixelRect
from quadriga.tasks.specification import SHORT_NAMES, Tiling, full_name

__all__ = ["SHORT_NAMES", "TASKS", "OutputError", "Task", "TiledTask", "full_name"]

TASKS = {
    "IMAGE_CLASSIFICATION": "quadriga.tasks.classification:ImageClassification",
    "IMAGE_SEGMENTATION": "quadriga.tasks.segmentation:ImageSegmentation",
    "OBJECT_DETECTION": "quadriga.tasks.detection:ObjectDetection",
    "ORIENTED_OBJECT_DETECTION": "quadriga.tasks.detection:OrientedObjectDetection",
}
"""Task type to `module:class`; the class takes a `ModelSpec`. Read it with `quadriga.tasks.specification.resolve`."""


class Task(Protocol):
    """A task as the pipeline uses it; safe to use from many threads."""

    actions: tuple[str, ...]
    """Actions that a request may name; the first is the default."""

    def options(self, parameters: Mapping[str, Any]) -> Any:
        """Validate the parameters of one input; parameters of other tasks are ignored.

        Raises:
            quadriga.tasks.parameters.ParameterError: An action is unknown or a value out of range.
        """
        ...

    def preprocess(self, image: Image) -> tuple[npt.NDArray[Any], Affine]:
        """Make the input tensor of one image, without the batch axis, and the map to undo it."""
        ...

    def predict(self, outputs: Outputs, affine: Affine, options: Any) -> list[Prediction]:
        """Read the model's outputs for one image; arrays come without the batch axis.

        Args:
            outputs: The graph's outputs by name, in its order.
            affine: What `preprocess` returned for the image; it carries the image's size.
            options: What `options` returned.

        Raises:
            OutputError: The outputs are not what the specification says.
        """
        ...


@runtime_checkable
class TiledTask(Task, Protocol):
    """A task that can also answer a large image tile by tile; `isinstance` tells whether one does.

    `predict` is `detect` and `to_predictions` for an image in one piece. `merge` stands between
    the two for an image in tiles. The candidates that pass from method to method are the task's own type.
    """

    def detect(self, outputs: Outputs, affine: Affine, options: Any) -> Any:
        """Read the model's outputs for one tile as candidates, in pixels of the tile.

        Args:
            outputs: The graph's outputs by name, in its order, without the batch axis.
            affine: What `preprocess` returned for the tile.
            options: What `options` returned.

        Raises:
            OutputError: The outputs are not what the specification says.
        """
        ...

    def merge(self, tiles: Sequence[tuple[PixelRect, Any]], tiling: Tiling, options: Any) -> Any:
        """Merge the candidates of all tiles, one tile at least, into candidates in pixels of the image."""
        ...

    def to_predictions(
        self, candidates: Any, width: int, height: int, options: Any
    ) -> list[Prediction]:
        """Turn the candidates of one image, whose size is in pixels, into its predictions."""
        ...
