"""Models behind models: the crops of a detector's detections, answered by another model that `[then]` names.

The crops of all images of a request run together, as many at once as the second model takes. Each is an inference of
that model, stored with the place that it was cut from.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import Model
from quadriga.engine.serving.image_inference import MAX_REQUEST_PIXELS, describe_crops, infer_crops
from quadriga.engine.serving.model_request import RequestTrace, ResultKeeping, image_model
from quadriga.engine.serving.recording import (
    CutCrops,
    ImageResult,
    RequestSummary,
    ResultOrigin,
    StoreResult,
)
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.chariot import protocol_of_images
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.store.blobs.interface import blob_key
from quadriga.tasks.image import Image, ImageError, decode
from quadriga.tasks.parameters import Budget, BudgetError
from quadriga.tasks.predictions import CropAnswer, CropBox, Prediction, with_answer
from quadriga.tasks.resize import check_shape
from quadriga.tasks.tiling import Crop, choose_detections, crop_rect, cut, encode_losslessly

LEFT_OUT = "crops_left_out"
"""Parameter of an output: detections that were chosen, and whose crops a limit kept from the model behind."""


class CropRun:
    """The crops of one request: cut, answered by the model behind, stored, and joined to the detections.

    Args:
        parent: The model whose detections are cut out.
        chain: The model that answers, and those behind it.
        keeping: Stores the results.
        settings: Settings with the limits of a request.
        request: The request to the first model.
    """

    def __init__(
        self,
        parent: Model,
        chain: Sequence[Model],
        keeping: ResultKeeping,
        *,
        settings: Settings,
        request: InferRequest,
    ) -> None:
        then, (self._model, *others) = parent.recognition.written.then, chain
        assert then is not None, "a model with others behind it names the next one"
        self._then = then
        self._parent = parent
        self._keeping = keeping
        self._request = request
        self._max_pixels = settings.max_pixels
        self._pixels = Budget(MAX_REQUEST_PIXELS, "pixels of crops")
        self._below: CropRun | None = None
        if others:
            self._below = CropRun(self._model, others, keeping, settings=settings, request=request)
        self._images = image_model(
            self._model,
            settings,
            keeping,
            None if self._below is None else self._below.cut,
        )
        self._crops: list[tuple[int, Crop]] = []
        """Crops with the number of the result that each was cut from."""
        self.left_out: list[int] = []
        """Number of crops of each result that a limit kept from the model behind."""
        self._results: list[ImageResult] = []
        self._summary: RequestSummary | None = None
        self._ids: Sequence[str] = ()
        self.elapsed_ms = 0.0
        """Milliseconds in which the crops were answered, also by the models further behind."""

    def cut(self, image: Image, data: bytes, predictions: Sequence[Prediction]) -> CutCrops:
        """Cut the crops of an image's detections; those over a limit are left out, and counted."""
        then, crops = self._then, list[Crop]()
        positions = choose_detections(predictions, then.labels, then.min_score)
        source: Image | None = None
        for position in positions[: then.max_crops]:
            detection: Any = predictions[position]
            rect = crop_rect(detection, then.margin, (image.width, image.height))
            if rect.empty:
                continue
            height, width = rect.size_hw
            try:
                check_shape(width, height, self._input)
                self._pixels.spend(width * height)
            except (ImageError, BudgetError):
                continue
            source = self._as_input(image, data) if source is None else source
            crops.append(Crop(position, rect, cut(source, rect)))
        return CutCrops(crops, len(positions) - len(crops))

    def infer(self, parents: Sequence[ImageResult]) -> list[ImageResult]:
        """Answer the crops of some results; a failure of the model behind is recorded as one of its own.

        Returns:
            The same results without their crops, which nobody else is to hold in memory.

        Raises:
            quadriga.proto.errors.ProtocolError: It failed, or the request was stopped.
        """
        cut_crops = [parent.cut_crops or CutCrops() for parent in parents]
        parents = [msgspec.structs.replace(parent, cut_crops=None) for parent in parents]
        self.left_out = [cut.left_out for cut in cut_crops]
        self._crops = [(number, crop) for number, cut in enumerate(cut_crops) for crop in cut.crops]
        if not self._crops:
            return parents
        started_s = time.perf_counter()
        self._admission = self._keeping.admit(self._model, self._request)
        described = describe_crops(
            self._images, [(parents[number], crop) for number, crop in self._crops]
        )
        described = self._with_origins(described, parents, ())  # those of failures have no ids
        with RequestTrace(
            self._model,
            self._request,
            protocol=protocol_of_images(self._request.protocol),
            recorder=self._keeping.recorder_of(self._model),
            failed_results=lambda: self._with_images(described),
        ) as trace:
            results = infer_crops(self._images, [crop for _, crop in self._crops], described)
            trace.stop()
            self._results = self._keeping.score(self._model, results)
            self._summary = trace.summary()
            trace.count_success(len(results))
        if self._below is not None:
            self._results = self._below.infer(self._results)
        self.elapsed_ms = (time.perf_counter() - started_s) * 1000
        return parents

    def join(
        self, outputs: Sequence[Tensor], parents: Sequence[ImageResult], stored: StoreResult
    ) -> tuple[list[Tensor], StoreResult]:
        """Store the inferences of the crops, and add the answers to the detections in a model's outputs.

        Args:
            outputs: Outputs of the first model, one element for each result.
            parents: Results of the first model.
            stored: What the store made of them.

        Returns:
            The outputs, and what the store made of all results.

        Raises:
            quadriga.store.records.errors.JournalError: An inference of a crop cannot be stored.
        """
        if not (self._crops or any(self.left_out)):  # as with tensors for the graph
            return list(outputs), stored
        if not self.record(parents, stored.ids):
            stored = msgspec.structs.replace(stored, stored=False)
        answered = zip(self.left_out, self.join_predictions(parents), strict=True)
        joined = []
        for tensor in outputs:
            data, left_out = [], []
            for element in tensor.data:
                count, predictions = next(answered)
                left_out.append(count)
                is_legacy = isinstance(element, dict)
                data.append(
                    {**element, "then": _answers(predictions)} if is_legacy else predictions
                )
            parameters = dict(tensor.parameters)
            if any(left_out):
                several = len(left_out) > 1
                parameters[LEFT_OUT] = ",".join(map(str, left_out)) if several else left_out[0]
            joined.append(msgspec.structs.replace(tensor, data=data, parameters=parameters))
        return joined, stored

    @property
    def _input(self) -> Any:
        assert self._model.spec is not None, "the model behind takes images"
        return self._model.spec.input

    def _as_input(self, image: Image, data: bytes) -> Image:
        """Return an image with the channels and bits that the model behind takes, decoded anew if it has others."""
        spec = self._input
        channels = 3 if spec.channels == 1 and spec.bit_depth == 8 else spec.channels
        if (image.pixels.shape[2], image.bit_depth) == (channels, spec.bit_depth):
            return image
        assert self._parent.spec is not None, "who detects takes images"
        try:
            return decode(
                data or encode_losslessly(image)[0],
                channels=spec.channels,
                bit_depth=spec.bit_depth,
                exif=self._parent.spec.input.exif,  # boxes are in the image as the detector has it
                max_pixels=self._max_pixels,
            )
        except ImageError as error:
            raise InvalidRequest(
                f"model {self._model.name!r} behind {self._parent.name!r}: {error}"
            ) from error

    def record(self, parents: Sequence[ImageResult], ids: Sequence[str]) -> bool:
        """Store the inferences of the crops, given the ids of the results they were cut from; return if it had room."""
        if self._summary is None:
            return True
        self._results = self._with_origins(self._results, parents, ids)
        to_store = self._with_images(self._results)
        stored = self._keeping.record(self._summary, to_store, self._admission)
        self._ids = stored.ids
        below_is_stored = self._below is None or self._below.record(self._results, stored.ids)
        return stored.stored and below_is_stored

    def _with_images(self, results: Sequence[ImageResult]) -> list[ImageResult]:
        """Return the results of crops with the files of those whose images are stored."""
        with_images = []
        for (_, crop), result in zip(self._crops, results, strict=True):
            image = mime = None
            if self._keeping.keeps_image(self._model, result):
                image, mime = encode_losslessly(crop.image)
            with_images.append(msgspec.structs.replace(result, image=image, mime=mime))
        return with_images

    def _with_origins(
        self, results: Sequence[ImageResult], parents: Sequence[ImageResult], ids: Sequence[str]
    ) -> list[ImageResult]:
        """Return the results of crops with their origins, given the ids of what they were cut from, if it is stored."""
        with_origins = []
        counts = [0] * len(parents)
        for (number, crop), result in zip(self._crops, results, strict=True):
            inference_id = ids[number] if ids else ""
            description = self._description(parents[number], crop)
            request_id = inference_id
            if inference_id:
                description["inference_id"] = inference_id
            elif (above := parents[number].origin) is not None:
                request_id = f"{above.request_id}/{above.image_no}"
            else:
                request_id = f"{self._request.id}/{number}"
            origin = ResultOrigin(request_id, counts[number], description)
            counts[number] += 1
            with_origins.append(msgspec.structs.replace(result, origin=origin))
        return with_origins

    def _description(self, parent: ImageResult, crop: Crop) -> dict[str, Any]:
        """Return what standard metadata say of a crop that was cut out of the image of a result."""
        detection: Any = parent.predictions[crop.position]
        above = parent.origin
        if above is not None:
            image, request_id = above.description["image"], above.description["request_id"]
        else:
            image = None if parent.image is None else blob_key(parent.image)
            request_id = self._request.id
        rect = crop.rect
        return {
            "request_id": request_id,
            "image": image,
            "model": self._parent.name,
            "version": self._parent.version,
            "prediction": crop.position,
            "label": detection.label,
            "score": detection.score,
            "xmin": rect.left,
            "ymin": rect.top,
            "xmax": rect.right,
            "ymax": rect.bottom,
        }

    def join_predictions(self, parents: Sequence[ImageResult]) -> list[list[Any]]:
        """Return the predictions of each result, with the answers about those that have a crop."""
        joined: list[list[Any]] = [list(parent.predictions) for parent in parents]
        below = self._below
        answers: Sequence[Any] = [result.predictions for result in self._results]
        if below is not None:
            answers = below.join_predictions(self._results)
        for index, (number, crop) in enumerate(self._crops):
            answer = CropAnswer(
                self._model.name,
                self._model.version,
                CropBox(crop.rect.left, crop.rect.top, crop.rect.right, crop.rect.bottom),
                predictions=answers[index],
                inference_id=self._ids[index] if self._ids else "",
                crops_left_out=0 if below is None else below.left_out[index],
            )
            joined[number][crop.position] = with_answer(joined[number][crop.position], answer)
        return joined


def _answers(predictions: Sequence[Any]) -> list[Any]:
    """Return what the model behind says of each detection; None for one whose crop it was not sent."""
    return [getattr(prediction, "then", None) for prediction in predictions]
