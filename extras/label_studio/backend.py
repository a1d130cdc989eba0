"""Answers Label Studio as one of its ML backends, and takes what its webhooks send.

Source: label-studio-ml-backend, "ML backend protocol"; Label Studio, "Set up machine learning with Label Studio".
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.extras.label_studio.images import (
    ImageFetcher,
    RemoteImage,
    SignedImage,
    StoredImage,
    find_image,
)
from quadriga.extras.label_studio.labeling import (
    Control,
    TaskPrediction,
    find_control,
    task_prediction,
)
from quadriga.extras.label_studio.tasks import truth_of_results
from quadriga.extras.label_studio.truth import (
    JOIN,
    METADATA_KEY,
    Target,
    ToolAnnotation,
    ToolTruth,
    read_webhook,
    task_key,
)
from quadriga.proto.access import Caller, admit
from quadriga.proto.errors import (
    InvalidRequest,
    ModelNotReady,
    NotFound,
    Overloaded,
    ProtocolError,
)
from quadriga.proto.messages import InferRequest, InferResponse, ModelInfo, Tensor
from quadriga.proto.request import Deadline, current_caller, new_request_id
from quadriga.quoting import quoted
from quadriga.store.changes.service import ChangeService
from quadriga.store.exchange.predictions import decode_objects
from quadriga.store.query.inferences import DEFAULT_MEDIA_TYPE, InferenceReader
from quadriga.store.query.names import Catalog
from quadriga.store.records.errors import JSON_ERRORS, StoreError
from quadriga.store.records.records import StoredInference
from quadriga.store.records.scope import EVERYTHING, Scope, Scoped
from quadriga.tasks.image import ImageError, decode

PROTOCOL = "label-studio"
"""Protocol in the standard metadata of inferences that are made for Label Studio."""

MAX_TASKS = 1000
"""Maximum tasks of a request for predictions."""

ANSWER_S = 85.0
"""Seconds after which the tasks that are left stay without predictions: Label Studio waits for 100."""

MAX_ERRORS = 100
"""Maximum errors that a response lists."""

_log = logging.getLogger("quadriga.label_studio")
_ERRORS = (ProtocolError, StoreError, ImageError)


class Health(msgspec.Struct, frozen=True):
    """Answer to a check of health."""

    status: str
    model_version: str


class Setup(msgspec.Struct, frozen=True):
    """Answer to a set-up: the version that predictions are of."""

    model_version: str


class Versions(msgspec.Struct, frozen=True):
    """Versions of the model that predictions may be of."""

    versions: list[str]


class TaskError(msgspec.Struct, frozen=True):
    """A task that got no prediction."""

    task: Any
    error: str


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request for predictions, one list for each task."""

    results: list[list[TaskPrediction]]
    model_version: str
    errors: list[TaskError] = []
    """Tasks without predictions, and why; at most `MAX_ERRORS`."""


class WebhookResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a webhook."""

    stated: int = 0
    """Annotations that are ground truth now."""
    unchanged: int = 0
    """Annotations that were known already, in this or a later state."""
    withdrawn: int = 0
    """Images whose annotation was deleted."""
    refused: list[str] = []
    """Annotations that cannot be ground truth, and why; at most `MAX_ERRORS`."""


class SetupBody(msgspec.Struct):
    """What Label Studio sends when it connects; its access token is not read."""

    project: str = ""
    schema: str = ""


class PredictBody(msgspec.Struct):
    """Tasks that Label Studio wants predictions for."""

    tasks: list[dict[str, Any]]
    label_config: str = ""
    project: Any = ""


class LabelStudioBackend:
    """Answers for every model; safe to use from several threads, `predict` on the event loop.

    Args:
        runs: Returns what runs the models.
        inferences: Reads the store.
        changes: States ground truth.
        fetcher: Fetches images of other servers.
        threads: Threads that fetch images and read the store.
        timeout_s: Time of one inference.
    """

    def __init__(
        self,
        runs: Callable[[], Pipeline],
        inferences: Scoped[InferenceReader],
        changes: Scoped[ChangeService],
        fetcher: ImageFetcher,
        threads: BoundedThreads,
        *,
        timeout_s: float,
    ) -> None:
        self._runs = runs
        self._inferences = inferences
        self._changes = changes
        self._fetcher = fetcher
        self._threads = threads
        self._timeout_s = timeout_s

    def health(self, model: str) -> Health:
        """Return that a model answers; raises as `Pipeline.model_info`, and `ModelNotReady`."""
        info = self._runs().model_info(model, None)
        if reason := self._runs().model_unready_reason(model, None):
            raise ModelNotReady(reason)
        return Health("UP", _version(info))

    def versions(self, model: str) -> Versions:
        """Return the versions of a model, in the form of those of predictions."""
        info = self._runs().model_info(model, None)
        return Versions([f"{info.name}@{version}" for version in info.versions])

    def setup(self, model: str, body: bytes) -> Setup:
        """Check that the labeling interface of a project has a control for the labels of a model."""
        request = _decoded(body, SetupBody)
        info = self._runs().model_info(model, None)
        try:
            find_control(request.schema, info.task, info.name)
        except ProtocolError as error:  # Label Studio shows the status alone
            _log.warning("label studio cannot use %s: %s", info.name, error)
            raise
        return Setup(_version(info))

    async def predict(
        self, model: str, body: bytes, scope: Scope, own_hosts: Collection[str]
    ) -> Predictions:
        """Return predictions for tasks; one that cannot have any has an empty list, and an error.

        Raises:
            InvalidRequest: The body is none of Label Studio, or no task can have a prediction for a fault of its own.
        """
        request = _decoded(body, PredictBody)
        if len(request.tasks) > MAX_TASKS:
            raise InvalidRequest(
                f"expected at most {MAX_TASKS} tasks in a request, got {len(request.tasks)}"
            )
        info = self._runs().model_info(model, None)
        control = find_control(request.label_config, info.task, info.name)
        run = _PredictRun(
            info=info,
            control=control,
            project=str(request.project),
            scope=scope,
            own_hosts=own_hosts,
            caller=current_caller(),
        )
        results: list[list[TaskPrediction]] = []
        errors: list[TaskError] = []
        first_error: Exception | None = None
        end_s = time.monotonic() + ANSWER_S
        for task in request.tasks:
            try:
                if time.monotonic() >= end_s:
                    raise Overloaded(f"no time was left within {ANSWER_S:g} s: ask again")
                results.append([await self._predict(task, run)])
            except _ERRORS as error:
                first_error = first_error or error
                results.append([])
                errors.append(TaskError(task.get("id"), str(error)))
        if first_error is not None:
            _log.warning(
                "label studio: %d of %d tasks have no prediction of %s: %s",
                len(errors), len(request.tasks), info.name, errors[0].error,
            )  # fmt: skip
            if len(errors) == len(request.tasks):
                raise first_error
        return Predictions(
            results=results, model_version=_version(info), errors=errors[:MAX_ERRORS]
        )

    async def _predict(self, task: Mapping[str, Any], run: "_PredictRun") -> TaskPrediction:
        prepared = await self._threads.run(self._prepare, task, run)
        if prepared.answer is not None:
            return prepared.answer
        request = _infer_request(run.info, prepared)
        response = await self._runs().run(
            partial(self._runs().infer, request),
            model=run.info.name,
            deadline=Deadline(self._timeout_s),
        )
        return await self._threads.run(self._answer, prepared, response, run)

    def _prepare(self, task: Mapping[str, Any], run: "_PredictRun") -> "_Prepared":
        """Find the image of a task, and its predictions if the store has them; in a thread."""
        data = task.get("data")
        if not isinstance(data, dict):
            raise InvalidRequest(
                f"expected the data of a task to be an object, got {quoted(data, 60)}"
            )
        store = self._inferences.within(run.scope)
        image = find_image(
            data, run.control.data_key, run.own_hosts, self._fetcher.label_studio_url
        )
        if isinstance(image, StoredImage):
            admit(run.caller, "read")
            inference = store.get(image.inference_id)
            size_wh = _size_wh(inference)
            if _is_of(inference, run.info) and size_wh is not None:
                predictions = decode_objects(inference.predictions)
                answer = task_prediction(predictions, run.control, size_wh, _version(run.info))
                return _Prepared(answer=answer)
            return _Prepared(image=store.input_bytes(image.inference_id)[0], size_wh=size_wh)
        if isinstance(image, SignedImage):
            query = image.query  # who has the URL may see what it names
            content = self._inferences.within(EVERYTHING).signed_input(
                image.digest,
                query.get("expires", ""),
                query.get("type", DEFAULT_MEDIA_TYPE),
                query.get("signature", ""),
                inference_id=query.get("inference", ""),
            )
            return _Prepared(image=content)
        assert isinstance(image, RemoteImage)
        key = ""
        if isinstance(task.get("id"), int) and run.project:
            key = task_key(run.project, int(task["id"]))
        return _Prepared(image=self._fetcher.fetch(image.url), task_key=key)

    def _answer(
        self, prepared: "_Prepared", response: InferResponse, run: "_PredictRun"
    ) -> TaskPrediction:
        """Make the prediction of a response, in a thread."""
        predictions = _predictions(response)
        size_wh = prepared.size_wh
        if size_wh is None and response.inference_ids:
            size_wh = _size_wh(self._inferences.within(run.scope).get(response.inference_ids[0]))
        if size_wh is None:
            picture = decode(prepared.image)
            size_wh = picture.width, picture.height
        version = f"{response.model}@{response.version}"
        return task_prediction(predictions, run.control, size_wh, version)

    def take_webhook(
        self, model: str, body: bytes, scope: Scope, own_hosts: Collection[str]
    ) -> WebhookResult:
        """Keep the annotations of an event as ground truth, or withdraw those that were deleted.

        Raises:
            InvalidRequest: It is no event, or none of its annotations can be ground truth.
        """
        event = read_webhook(body)
        info_task, name = self._stored_model(
            model, scope
        )  # first: any event tells that a URL is wrong
        if not event.stated and not event.deleted:
            return WebhookResult()
        inferences = self._inferences.within(scope)
        truth = ToolTruth(inferences, self._changes.within(scope).ground_truth)
        limited_to = name if scope.models else ""
        withdrawn = truth.withdraw(event.project, event.deleted, info_task, limited_to)
        stated, refused, first_error = 0, list[str](), None
        for annotation in event.stated:
            try:
                target = self._target(
                    annotation, info_task, limited_to, inferences=inferences, own_hosts=own_hosts
                )
                stated += truth.state(annotation, target, _truth(annotation, target, info_task))
            except StoreError as error:
                if error.status >= 500:
                    raise
                _log.warning(
                    "label studio: annotation %s is no ground truth: %s", annotation.key, error
                )
                first_error = first_error or error
                refused.append(f"annotation {annotation.key}: {error}")
        if first_error is not None and len(refused) == len(event.stated):
            raise first_error
        return WebhookResult(
            stated=stated,
            unchanged=len(event.stated) - stated - len(refused),
            withdrawn=withdrawn,
            refused=refused[:MAX_ERRORS],
        )

    def _stored_model(self, model: str, scope: Scope) -> tuple[str, str]:
        """Return the task and the name of a model that is served, or has stored inferences."""
        try:
            info = self._runs().model_info(model, None)
        except (ModelNotReady, NotFound):  # a correction is worth keeping all the same
            inferences = self._inferences.within(scope)
            name = inferences.names.resolve(model)
            with inferences.snapshot() as connection:
                rows = [row for row in Catalog(connection, scope).models if row.name == name]
            if not rows:
                raise
            return max(rows).task, name
        return info.task, info.name

    def _target(
        self,
        annotation: ToolAnnotation,
        task: str,
        model: str,
        inferences: InferenceReader,
        own_hosts: Collection[str],
    ) -> Target:
        """Return what an annotation is joined to: the inference that its task names, or the task itself."""
        for key in annotation.data:
            try:
                image = find_image(annotation.data, key, own_hosts, "")
            except InvalidRequest:
                continue
            if isinstance(image, SignedImage) and "inference" in image.query:
                image = StoredImage(image.query["inference"])
            if isinstance(image, StoredImage):
                inference = inferences.get_committed(image.inference_id)
                return Target("id", inference.id, inference.task)
        return Target(JOIN, annotation.task_key, task, model)


class _PredictRun(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all tasks of a request."""

    info: ModelInfo
    control: Control
    project: str
    scope: Scope
    own_hosts: Collection[str]
    caller: Caller


class _Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose image is there, or whose prediction is."""

    answer: TaskPrediction | None = None
    image: bytes = b""
    size_wh: tuple[int, int] | None = None
    task_key: str | None = None
    """Key of the task that the inference is stored for; None for an image of the store, whose inference is there."""


def _infer_request(info: ModelInfo, prepared: _Prepared) -> InferRequest:
    parameters: dict[str, Any] = {"store": prepared.task_key is not None}
    if prepared.task_key:
        parameters["metadata"] = {METADATA_KEY: prepared.task_key}
    image = Tensor("image", "BYTES", (1,), [prepared.image], parameters=parameters)
    return InferRequest(info.name, None, new_request_id(), [image], protocol=PROTOCOL)


def _predictions(response: InferResponse) -> list[dict[str, Any]]:
    """Return the predictions of the one image of a response, in the form of the wire."""
    rows: Any = response.outputs[0].data if response.outputs else []
    row = rows[0] if len(rows) else []
    if isinstance(row, str | bytes):
        row = msgspec.json.decode(row)
    items = msgspec.to_builtins(row)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _truth(annotation: ToolAnnotation, target: Target, task: str) -> list[dict[str, Any]] | None:
    if annotation.result is None:
        return None
    place = f"annotation {annotation.key}"
    return truth_of_results(annotation.result, place, target.task or task)


def _is_of(inference: StoredInference, info: ModelInfo) -> bool:
    reference = inference.model
    return (reference.name, reference.version) == (
        info.name,
        info.version,
    ) and inference.status == 200


def _size_wh(inference: StoredInference) -> tuple[int, int] | None:
    width, height = inference.input.width, inference.input.height
    return (width, height) if width and height else None


def _version(info: ModelInfo) -> str:
    return f"{info.name}@{info.version}"


def _decoded(body: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except JSON_ERRORS as error:
        raise InvalidRequest(f"expected a request of Label Studio, got: {error}") from error
