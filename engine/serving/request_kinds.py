"""Three kinds of requests to a model, answered in the same way: images, rows of features, and tensors of the graph."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import (
    MAX_REQUEST_PIXELS,
    MAX_TILES,
    CutDetections,
    ImageBudgets,
    ImageModel,
    failed_image_results,
    infer_images,
)
from quadriga.engine.serving.recording import ImageResult, replayed_id
from quadriga.engine.serving.request_trace import ResultKeeping
from quadriga.engine.serving.tensors.explanation import explain_images, read_explain_options
from quadriga.engine.serving.tensors.row_explanation import explain_rows, read_rows_to_explain
from quadriga.engine.serving.tensors.row_inference import infer_rows
from quadriga.engine.serving.tensors.tensor_inference import (
    count_rows,
    failed_tensor_results,
    infer_tensors,
)
from quadriga.proto.errors import Unsupported
from quadriga.proto.http.chariot import protocol_of_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.classification import RowClassification
from quadriga.tasks.parameters import Budget

Answer = tuple[list[Tensor], list[ImageResult]]
"""Outputs for the client; and one result for each inference, to be stored."""

Explain = Callable[[], list[Any]]
"""Explains a prediction of each image or row of a request that was answered."""


class ImageRequest(msgspec.Struct, frozen=True):
    """A request with images, for a model whose inputs are images."""

    images: ImageModel
    request: InferRequest

    has_output_per_image = True

    @property
    def protocol(self) -> str:
        """Name of the protocol, as it is stored."""
        return protocol_of_images(self.request.protocol)

    def infer(self) -> Answer:
        """Answer the request; see `infer_images`."""
        return infer_images(self.images, self.request)

    def failed_results(self) -> list[ImageResult]:
        """Return what can be stored if the model fails to answer."""
        return failed_image_results(self.images, self.request)

    def count(self, results: Sequence[ImageResult]) -> int:
        """Count the images that were answered."""
        return len(results)

    def prepare_explanation(self) -> Explain:
        """Refuse what cannot be explained before the model runs; return what explains the rest."""
        options = read_explain_options(self.images.predictor.task, self.request)
        return partial(explain_images, self.images, self.request, options)


class RowRequest(msgspec.Struct, frozen=True):
    """A request with the graph's own inputs, for a classifier that answers with labels of each row."""

    model: Model
    classifier: RowClassification
    request: InferRequest
    max_rows: int

    has_output_per_image = True

    @property
    def protocol(self) -> str:
        """Name of the protocol, as it is stored."""
        return self.request.protocol

    def infer(self) -> Answer:
        """Answer the request; see `infer_rows`."""
        return infer_rows(self.model, self.classifier, self.request, max_rows=self.max_rows)

    def failed_results(self) -> list[ImageResult]:
        """Return what can be stored if the model fails to answer."""
        return failed_tensor_results(self.request)

    def count(self, results: Sequence[ImageResult]) -> int:
        """Count the rows that were answered."""
        return len(results)

    def prepare_explanation(self) -> Explain:
        """Refuse what cannot be explained before the model runs; return what explains the rest."""
        rows = read_rows_to_explain(
            self.model, self.classifier, self.request, max_rows=self.max_rows
        )
        return partial(explain_rows, self.model, self.classifier, rows)


class TensorRequest(msgspec.Struct, frozen=True):
    """A request with tensors for the graph, which is answered with the graph's outputs."""

    model: Model
    request: InferRequest
    is_stored: bool
    """Whether results of the model are stored."""

    has_output_per_image = False

    @property
    def protocol(self) -> str:
        """Name of the protocol, as it is stored."""
        return self.request.protocol

    def infer(self) -> Answer:
        """Answer the request; see `infer_tensors`."""
        return infer_tensors(self.model, self.request, is_stored=self.is_stored)

    def failed_results(self) -> list[ImageResult]:
        """Return what can be stored if the model fails to answer."""
        return failed_tensor_results(self.request)

    def count(self, _: Sequence[ImageResult]) -> int:
        """Count the rows that were answered, all of which are one result."""
        return count_rows(self.model, self.request)

    def prepare_explanation(self) -> Explain:
        """Raise `Unsupported`: outputs of a graph are no predictions."""
        read_explain_options(self.model.recognition.task, self.request)
        raise Unsupported("expected images or rows to explain, got tensors")


RequestKind = ImageRequest | RowRequest | TensorRequest


def request_kind(
    model: Model,
    request: InferRequest,
    settings: Settings,
    keeping: ResultKeeping,
    cut: CutDetections | None = None,
) -> RequestKind:
    """Find out what a request brings: images or rows for the model, or tensors for its graph.

    Args:
        model: The model that answers.
        request: The request.
        settings: Settings with the limits of a request.
        keeping: Knows what is stored of the model's results.
        cut: Cuts crops of images for the model behind this one; None where there is none.
    """
    predictor, classifier = model.image_predictor, model.row_classifier
    if predictor is not None:
        if isinstance(predictor, ImageGraph) and _is_raw(request) and not _has_bytes(request):
            return TensorRequest(model, request, keeping.recorder_of(model) is not None)
        images = image_model(model, settings, keeping, cut)
        if replayed_id(request) is not None:  # what live images have for their signals stays theirs
            images = msgspec.structs.replace(images, choose_for_signals=None)
        return ImageRequest(images, request)
    if classifier is not None and not _is_raw(request):
        return RowRequest(model, classifier, request, max_rows=settings.max_images)
    return TensorRequest(model, request, keeping.recorder_of(model) is not None)


def image_model(
    model: Model,
    settings: Settings,
    keeping: ResultKeeping,
    cut: CutDetections | None,
) -> ImageModel:
    """Return a model whose inputs are images with the limits of one request; arguments as of `request_kind`."""
    assert model.image_predictor is not None, "the caller has looked"
    budgets = ImageBudgets(
        Budget(MAX_REQUEST_PIXELS, "pixels"),
        Budget(MAX_TILES, "tiles"),
        Budget(settings.max_tokens, "new tokens"),
    )
    return ImageModel(
        model.image_predictor,
        max_pixels=settings.max_pixels,
        max_images=settings.max_images,
        budgets=budgets,
        choose_for_signals=keeping.choose_for_signals(model),
        is_scored=keeping.has_scores(model),
        cut=cut,
    )


def _is_raw(request: InferRequest) -> bool:
    """Check whether a request asks for the outputs of the graph."""
    if request.parameters.get("content_type") == "raw":
        return True
    return "raw" in [tensor.parameters.get("content_type") for tensor in request.inputs]


def _has_bytes(request: InferRequest) -> bool:
    """Check for inputs that no graph of images takes: with numbers beside them, the error names the number."""
    return "BYTES" in [tensor.datatype for tensor in request.inputs]
