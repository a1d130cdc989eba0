"""Every endpoint of the server's OpenAPI document has a method of the client, or a reason why not."""

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from quadriga.client import Client, ServerRefused, TruthWarning
from quadriga.client.errors import InputError
from quadriga.client.resources.resource import Resource
from quadriga.client.transport.connections import Call, Response
from tests.onnx_models import doubling
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

LEFT_OUT = {
    r"GET /": "KServe V1's own check, as GET /v2/health/live",
    r".* /v1/.*": "TensorFlow Serving and KServe V1: the same models by other protocols",
    r"POST /infer": "an image without its model's name, as client.infer",
    r"POST /api/serve/.*": "Chariot's gateway, as client.infer",
    r"GET /ready": "Chariot's check, as GET /v2/health/ready",
    r"GET /api/blobs/\{digest\}": "an address that client.inferences.presigned gives, for any program",
    r"GET /api/inferences": "the form for browsers of POST /api/inferences/query",
    r"GET /api/inferences\.(arrow|parquet)": "tables that Polars, DuckDB and pyarrow read by their address",
    r"GET /api/inferences/facets": "the form for browsers of the POST",
    r"GET /api/inferences/label-queue": "the form for browsers of the POST",
    r".* /label-studio/.*": "what Label Studio asks and sends by itself",
    r"POST /api/cloudevents": "what KServe's logger sends",
}
"""Endpoints without a method, as patterns, and why."""

ARGUMENTS: dict[str, Any] = {
    "annotations": [], "every": "1h", "description": {}, "image": b"x", "images": [b"x"], "inferences": [{}], "inputs": [], "items": [], "job_id": "a job",
    "level": "info", "until": "2030-01-01T00:00:00Z", "where": {"label": "a"},
}  # fmt: skip
"""Arguments that are no texts, by the names of parameters."""


class Recorded(Exception):
    """A request would have been sent."""


class Recorder:
    """Stands in the place of the connections, and writes down each request."""

    url = "http://recorder"

    def __init__(self) -> None:
        self.requests: set[str] = set()

    def exchange(self, call: Call, *_: Any, **__: Any) -> Response:
        self.requests.add(f"{call.method} {urlsplit(call.path).path}")
        raise Recorded

    def stream(self, call: Call, *_: Any, **__: Any) -> Iterator[Any]:
        self.exchange(call)
        yield


def call_all(target: Any) -> None:
    """Call every method of a client or group without its optional arguments, with a name, and with a version, too."""
    for name, method in inspect.getmembers(target, inspect.ismethod):
        if name.startswith("_") or name in {"close", "send", "open_stream"}:
            continue
        parameters = inspect.signature(method).parameters.values()
        named = [p for p in parameters if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL}]
        required = [p for p in named if p.default is p.empty]
        for further in ((), ("name",), ("name", "version")):
            optional = [p for p in named if p.name in further and p not in required]
            chosen = [*required, *optional]
            arguments = {p.name: ARGUMENTS.get(p.name, "an id") for p in chosen}
            with suppress(Recorded, InputError):
                next(iter(method(**arguments)))  # a query or an iterator asks when it is read


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = ServerProcess(tmp_path_factory.mktemp("endpoints") / "data", SAMPLE_MODELS).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def documented(server) -> set[str]:
    """Verbs and paths of the server's OpenAPI document."""
    paths = server.call("GET", "/schema/openapi.json")[1]["paths"]
    verbs = {"get", "put", "post", "delete", "patch"}
    return {
        f"{verb.upper()} {path}"
        for path, operations in paths.items()
        for verb in operations.keys() & verbs
    }


@pytest.fixture(scope="module")
def sent() -> set[str]:
    """Verbs and paths of all requests that the client's methods send."""
    client = Client("http://recorder", key="")
    recorder = Recorder()
    client._connections = recorder  # type: ignore[assignment]
    call_all(client)
    for group in vars(client).values():
        if isinstance(group, Resource):
            call_all(group)
    with pytest.raises(Recorded):
        client.inferences.delete(every=True)
    return recorder.requests


def pattern(operation: str) -> str:
    return re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(operation))


def test_every_endpoint_has_a_method_or_a_reason(documented, sent):
    missing = [
        operation
        for operation in sorted(documented)
        if not any(re.fullmatch(reason, operation) for reason in LEFT_OUT)
        and not any(re.fullmatch(pattern(operation), request) for request in sent)
    ]
    assert not missing


def test_every_method_has_an_endpoint(documented, sent):
    unknown = [
        request
        for request in sorted(sent)
        if not any(re.fullmatch(pattern(operation), request) for operation in documented)
    ]
    assert not unknown


def test_no_reason_is_left_over(documented):
    unused = [
        reason
        for reason in LEFT_OUT
        if not any(re.fullmatch(reason, operation) for operation in documented)
    ]
    assert not unused


def test_the_client_does_on_a_server_what_its_page_says(server, tmp_path):
    photo = IMAGES / "detection" / "scene_01.jpg"
    with Client(f"http://{server.host}", key="") as client:
        result = client.infer("shapes-detector", photo, {"camera": "nörth"})
        (stored,) = client.query("meta.camera=nörth", consistency="journal")
        assert stored.id == result.id
        assert stored.predictions == result.predictions
        assert stored.image() == photo.read_bytes()
        truth = [{key: row[key] for key in row if key != "score"} for row in result.predictions]
        assert client.truth.state(result.id, truth, source="amy").ground_truth == truth
        revision = client.truth.get(result.id)["revision"]
        assert client.truth.history(result.id)
        client.truth.withdraw(result.id, revision=revision)
        answer = client.truth.bulk([{"value": result.id, "annotations": truth}], source="amy")
        assert answer["stated"] == 1
        report = client.evaluate("shapes-detector", resamples=0)
        assert report["kind"] == "evaluation"
        assert "<html" in client.reports.page(client.jobs.list()[0]["id"])
        job = client.jobs.wait(client.inferences.export("label=circle", format_="jsonl"))
        path = client.jobs.result(job["id"], tmp_path / "export.jsonl")
        assert result.id in path.read_text()
        client.inferences.change_metadata(result.id, {"ok": True}, remove=["camera"])
        assert client.inferences.get(result.id).metadata == {"ok": True}
        client.inferences.give_feedback(result.id, "thumbs", 1.0, comment="good")
        assert client.inferences.count({"meta.ok": True}) == 1
        assert client.inferences.aggregate(group=["model"])["groups"]
        client.views.save("mine", "label=circle")
        assert "mine" in str(client.views.list())
        client.views.delete("mine")
        assert client.models.get("shapes-detector")["served"]
        assert client.models.metadata("shapes-detector")["properties"]["task"] == "OBJECT_DETECTION"
        assert client.models.index(ready=True)
        assert client.models.stats()["model_stats"]
        client.models.set_retention("shapes-detector", inputs_days=30)
        assert client.models.retention("shapes-detector")["inputs_days"] == 30
        client.models.load("shapes-detector")
        assert client.server.live()
        assert client.server.ready()
        assert "quadriga_" in client.server.metrics()
        assert client.inferences.delete({"meta.ok": True})["count"] == 1
        box = {"label": "car", "score": 0.9, "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}
        first = client.log("plates", photo, [box], {"camera": "gate"}, key="one", latency_ms=3.5)
        assert client.log("plates", photo, [box], {"camera": "gate"}, key="one") == first
        assert [row.id for row in client.query("meta.camera=gate", consistency="journal")] == first
        many = client.log_many("plates", [{"predictions": [box]}, {"predictions": [{"label": 1}]}])
        assert (many["stored"], len(many["refused"])) == (1, 1)
        pieces = list(
            client.models.generate_stream("shapes-image-text", "What?", photo.read_bytes())
        )
        assert "".join(piece["text_output"] for piece in pieces)
        with pytest.raises(ServerRefused, match="model not found"):
            client.models.set_baseline("none", name="x")


def test_a_folder_is_joined_with_its_truth_by_file_names_and_evaluated(server, tmp_path):
    folder = IMAGES / "classification"
    model = "shapes-classifier@1"
    with Client(f"http://{server.host}", key="") as client:
        ids = {result.id for result in client.infer_many(model, folder)}
        where = "model=shapes-classifier@1 & meta.path=contains:scene"
        assert client.query(where, consistency="journal").count() == len(ids) == 12
        assert client.truth.bulk(folder / "annotations.jsonl")["matched"] == 12
        report = client.evaluate(model, resamples=0)
        accuracy = next(row["value"] for row in report["metrics"] if row["type"] == "Accuracy")
        assert float(report.metric("accuracy")) == accuracy
        assert f"Accuracy {accuracy:.4g}" in str(report)
        assert client.truth.state(ids.pop(), "circle").ground_truth == [{"label": "circle"}]


def test_a_mistyped_label_is_stated_with_a_warning(server):
    image = IMAGES / "classification" / "scene_01.jpg"
    with Client(f"http://{server.host}", key="") as client:
        result = client.infer("shapes-classifier", image)
        with pytest.warns(TruthWarning, match="'circl' is not a label of 'shapes-classifier'; did you mean circle"):  # fmt: skip
            assert client.truth.state(result.id, "circl").ground_truth == [{"label": "circl"}]
        client.truth.state(result.id, "circle")  # without, which would be an error here


def test_a_mask_is_the_truth_of_a_segmentation(server):
    image = next((IMAGES / "segmentation").glob("*.jpg"))
    with Client(f"http://{server.host}", key="") as client:
        result = client.infer("shapes-segmenter", image)
        assert result.regions
        width, height = result.image_size
        mask = np.zeros((height, width), np.uint8)
        labels = dict(enumerate(dict.fromkeys(result.labels), 1))
        for value, label in labels.items():
            for region in result.regions:
                mask[region.mask(result.image_size) & (region.label == label)] = value
        stated = client.truth.state_mask(result.id, mask, labels, source="amy")
        assert {row["label"] for row in stated.ground_truth} == set(labels.values())
        rows = list(client.query(f"id={result.id}", consistency="journal").annotations())
        assert [row["label"] for row in rows] == list(labels.values())
        with pytest.raises(InputError, match="expected a mask of"):
            client.truth.state_mask(result.id, mask[1:], labels)


def test_class_numbers_are_those_of_the_model_in_every_image(server):
    with Client(f"http://{server.host}", key="") as client:
        labels = client.models.get("shapes-detector")["labels"]
        for result in client.infer_many("shapes-detector", IMAGES / "detection"):
            numbers = [int(line.split()[0]) for line in result.to_yolo().splitlines()]
            assert [labels[number] for number in numbers] == result.labels
            (stored,) = client.query(f"id={result.id}", consistency="journal")
            assert stored.to_yolo() == result.to_yolo()
            assert [row["label"] for row in client.query(f"id={result.id}").detections()] == result.labels  # fmt: skip


def test_tensors_are_sent_and_answered(tmp_path):
    folder = tmp_path / "models" / "doubling"
    folder.mkdir(parents=True)
    doubling(folder / "model.onnx")
    with (
        ServerProcess(tmp_path / "data", tmp_path / "models") as server,
        Client(f"http://{server.host}", key="") as client,
    ):
        answer = client.infer_tensors("doubling", {"x": np.ones((2, 3), np.float32)})
        assert answer["outputs"][0]["data"] == [2.0] * 6
        row = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
        assert client.infer_tensors("doubling", [row])["outputs"][0]["data"] == [2, 4, 6]
        with pytest.raises(ValueError, match="'x' to be an array of numbers, got list"):
            client.infer_tensors("doubling", {"x": [1, 2, 3]})
