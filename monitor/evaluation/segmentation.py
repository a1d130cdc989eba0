"""Image segmentation: instances as objects, and a label for each pixel, in one report."""

from collections.abc import Sequence

from monitor.evaluation.evaluators import Composed, Evaluated
from monitor.evaluation.instances import Instances
from monitor.evaluation.semantic import Semantic
from monitor.evaluation.state import EvaluatedImage, Labels, State, Table


class Segmentation:
    """Evaluates `IMAGE_SEGMENTATION`, instances first; without pixels, as of COCO's files, them alone."""

    def tables(self, images: Sequence[EvaluatedImage], labels: Labels) -> dict[str, Table]:
        """Read contours, as masks and as labels of pixels.

        Raises:
            EvaluationError: They are no regions, or the size of an image is not known.
        """
        return Instances().tables(images, labels) | Semantic().tables(images, labels)

    def evaluate(self, state: State) -> Evaluated:
        """Look into a whole state."""
        parts = (Instances(), Semantic()) if "pixels" in state.tables else (Instances(),)
        return Composed([part.evaluate(state) for part in parts])
