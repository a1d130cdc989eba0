"""A backend of Label Studio with a real store and a model that says what it is told."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.extras.label_studio.backend import LabelStudioBackend
from quadriga.extras.label_studio.images import ImageFetcher
from quadriga.extras.label_studio.settings import parse_hosts
from quadriga.proto.errors import NotFound
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.proto.messages import InferRequest, InferResponse, ModelInfo, Tensor
from quadriga.proto.request import Deadline
from quadriga.store.changes.service import ChangeService
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import IdSource
from quadriga.store.records.scope import EVERYTHING, Scope
from tests.unit.store_harness import StoreHarness

MODEL, TASK = "shapes-detector", "OBJECT_DETECTION"
OWN = ("localhost",)
LABELS = "".join(f'<Label value="{name}"/>' for name in ("circle", "square"))
CONFIG = (
    '<View><Image name="image" value="$image"/>'
    f'<RectangleLabels name="box" toName="image">{LABELS}</RectangleLabels></View>'
)
PREDICTION = {"label": "square", "score": 0.75, "xmin": 1, "ymin": 1, "xmax": 3, "ymax": 3}


class OneModel:
    """A pipeline of one model, which sees the same thing on each image."""

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.is_there = True
        self.problem: Exception | None = None

    def model_info(self, name: str, version: str | None) -> ModelInfo:
        if not self.is_there or name.lower() != MODEL:
            raise NotFound(f"model not found: {name}")
        return ModelInfo(MODEL, version or "2", ["1", "2"], "onnx", TASK, [], [])

    def model_unready_reason(self, name: str, version: str | None) -> str | None:
        return None

    def infer(self, request: InferRequest) -> InferResponse:
        self.requests.append(request)
        if self.problem is not None:
            raise self.problem
        output = Tensor("predictions", "BYTES", (1,), [[PREDICTION]])
        return InferResponse(MODEL, "2", request.id, [output])

    def run(
        self, task: Callable[[], InferResponse], *, model: str, deadline: Deadline
    ) -> Awaitable[InferResponse]:
        return asyncio.to_thread(task)


class BackendHarness:
    """A backend over a store whose writer runs elsewhere."""

    def __init__(self, store: StoreHarness, worker: int = 0) -> None:
        self.store = store
        self.runs = OneModel()
        inferences = InferenceReader(
            store.url, store.journal_directory, store.blobs, served=lambda: [MODEL]
        )
        store.inferences = inferences
        changes = ChangeService(
            inferences,
            store.journal,
            IdSource(worker),
            read_metadata=parse_metadata_value,
            erasures=store.erasures,
        )
        hosts = parse_hosts("127.0.0.1")
        self.changes = changes
        self.backend = LabelStudioBackend(
            lambda: self.runs,
            inferences,
            changes,
            ImageFetcher(hosts, max_bytes=10_000, timeout_s=5.0),
            BoundedThreads("tasks", 2, 8, 5.0),
            timeout_s=5.0,
        )

    def predict(self, *tasks: Any, scope: Scope = EVERYTHING, **body: Any) -> Any:
        """Ask for predictions; return the JSON of the answer."""
        request = {"tasks": tasks, "label_config": CONFIG, "project": "3.1764277000", **body}
        answer = self.backend.predict(MODEL, msgspec.json.encode(request), scope, OWN)
        return msgspec.to_builtins(asyncio.run(answer))

    def send(self, payload: Any, *, scope: Scope = EVERYTHING, model: str = MODEL) -> Any:
        """Send a webhook; return the JSON of the answer."""
        body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        return msgspec.to_builtins(self.backend.take_webhook(model, body, scope, OWN))


def project(**more: Any) -> dict[str, Any]:
    return {"id": 3, "title": "Shapes", "created_at": "2025-11-27T20:56:40.123456Z", **more}


def region(label: str = "square", **value: float) -> dict[str, Any]:
    shape = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, **value}
    return {
        "id": "r0", "type": "rectanglelabels", "from_name": "box", "to_name": "image",
        "original_width": 640, "original_height": 480, "image_rotation": 0,
        "value": {**shape, "rectanglelabels": [label]},
    }  # fmt: skip


def annotation(second: int, id_: int = 12, *labels: str, action: str = "UPDATED", **more: Any) -> Any:  # fmt: skip
    """Return an event of an annotation that was changed at a second."""
    task = more.pop("task", {"id": 7, "data": {"image": "/a.jpg", "inference_id": "1"}})
    said = {
        "id": id_, "task": task["id"], "result": [region(label) for label in labels], "completed_by": 5,
        "updated_at": f"2026-11-27T21:00:{second:02}.000000Z", "was_cancelled": False, **more,
    }  # fmt: skip
    return {
        "action": f"ANNOTATION_{action}",
        "annotation": said,
        "task": task,
        "project": project(),
    }


def deletion(*ids: int) -> Any:
    """Return an event of deleted annotations."""
    return {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": id_} for id_ in ids], "project": project()}  # fmt: skip
