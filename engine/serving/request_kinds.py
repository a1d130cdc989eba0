"""Three kinds of requests to a model, answered in the same way: images, rows of features, and tensors of the graph."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import (
    MAX_REQUEST_PIXELS,
    MAX_TILES,
    CutDetections,
    ImageModel,
    failed_image_results,
    infer_images,
)
from quadriga.engine.serving.recording import ImageResult, replayed_id
from quadriga.engine.serving.request_trace import ResultKeeping
from quadriga.engine.serving.tensors.explanation import (
    Explain,
    prepare_image_explanation,
    prepare_row_explanation,
    refuse_explanation,
)
from quadriga.engine.serving.tensors.row_inference import infer_rows
from quadriga.engine.serving.tensors.tensor_inference import (
    count_rows,
    failed_tensor_results,
    infer_tensors,
)
from quadriga.proto.http.chariot import protocol_of_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.tasks.parameters import Budget

Answer = tuple[list[Tensor], list[ImageResult]]
"""Outputs for the client; and one result for each inference, to be stored."""


class RequestKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a request brings for a model, and how it is answered."""

    protocol: str
    """Name of the protocol, as it is stored."""
    infer: Callable[[], Answer]
    """Answers the request."""
    failed_results: Callable[[], list[ImageResult]]
    """Returns what can be stored if the model fails to answer."""
    prepare_explanation: Callable[[], Explain]
    """Refuses what cannot be explained before the model runs; returns what explains the rest."""
    images: ImageModel | None = None
    """The model of images that answers; None for rows of features, and for tensors."""
    tensor_rows: int | None = None
    """Number of rows of tensors for the graph, all of which are one result; None for images and rows of features."""

    @property
    def has_output_per_image(self) -> bool:
        """Whether an output has one element for each result; those of a graph belong to one result."""
        return self.tensor_rows is None

    def count(self, results: Sequence[ImageResult]) -> int:
        """Count the images or rows that were answered."""
        return len(results) if self.tensor_rows is None else self.tensor_rows


def request_kind(
    model: Model,
    request: InferRequest,
    settings: Settings,
    keeping: ResultKeeping,
    cut: CutDetections | None,
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
    if predictor is not None and not (
        isinstance(predictor, ImageGraph) and _is_raw(request) and not _has_bytes(request)
    ):
        images = image_model(model, settings, keeping, cut)
        if replayed_id(request) is not None:  # what live images have for their signals stays theirs
            images = msgspec.structs.replace(images, choose_for_signals=None)
        return RequestKind(
            protocol=protocol_of_images(request.protocol),
            infer=partial(infer_images, images, request),
            failed_results=partial(failed_image_results, images, request),
            prepare_explanation=partial(prepare_image_explanation, images, request),
            images=images,
        )
    failed_results = partial(failed_tensor_results, request)
    if predictor is None and classifier is not None and not _is_raw(request):
        rows = model, classifier, request, settings.max_images
        return RequestKind(
            protocol=request.protocol,
            infer=partial(infer_rows, *rows),
            failed_results=failed_results,
            prepare_explanation=partial(prepare_row_explanation, *rows),
        )
    is_stored = keeping.recorder_of(model) is not None
    return RequestKind(
        protocol=request.protocol,
        infer=partial(infer_tensors, model, request, is_stored=is_stored),
        failed_results=failed_results,
        prepare_explanation=partial(refuse_explanation, model.recognition.task, request),
        tensor_rows=count_rows(model, request),
    )


def image_model(
    model: Model,
    settings: Settings,
    keeping: ResultKeeping,
    cut: CutDetections | None,
) -> ImageModel:
    """Return a model whose inputs are images with the limits of one request; arguments as of `request_kind`."""
    assert model.image_predictor is not None, "the caller has looked"
    return ImageModel(
        model.image_predictor,
        max_pixels=settings.max_pixels,
        max_images=settings.max_images,
        pixels=Budget(MAX_REQUEST_PIXELS, "pixels"),
        tiles=Budget(MAX_TILES, "tiles"),
        tokens=Budget(settings.max_tokens, "new tokens"),
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
