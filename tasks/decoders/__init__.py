"""Model families: one file each turns raw outputs into candidate boxes. Tables, no discovery."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

DECODERS = {
    "ultralytics": "tasks.decoders.ultralytics:raw_head",
}
"""Name to `module:attribute` of a `Decoder`; `model.toml` may give such a reference of its own."""


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """Boxes that a network proposes, before overlapping ones are suppressed."""

    boxes: npt.NDArray[np.float32]
    """float32 (N, 4), xyxy, pixels of the network's input."""
    scores: npt.NDArray[np.float32]
    """float32 (N,), 0 to 1."""
    class_ids: npt.NDArray[np.int64]
    """int64 (N,), from 0."""
    suppress: bool = True
    """Whether overlapping boxes are still in; networks that answer each object once say False."""


class Decoder(Protocol):
    """A function from the outputs of one image to candidates."""

    def __call__(
        self,
        outputs: Mapping[str, npt.NDArray[Any]],
        score_threshold: float,
        size_wh: tuple[int, int],
    ) -> Candidates:
        """Read the boxes that score above the threshold.

        Args:
            outputs: The graph's outputs by name, in its order, without the batch axis.
            score_threshold: What does not score above it is left out.
            size_wh: Width and height of the network's input for this image, pixels, for heads that
                answer fractions of it.

        Raises:
            tasks.predictions.OutputError: The outputs are not what this family answers.
        """
        ...
