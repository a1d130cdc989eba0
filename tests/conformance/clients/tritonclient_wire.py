"""What the four clients of tritonclient do alike: HTTP and gRPC, each blocking and with asyncio."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from checks import ARRAYS, LARGE, NOT_FINITE, A, B, Checks, equal, within
from tritonclient.utils import InferenceServerException

checks = Checks()
SERVER = checks.server
LOOP = asyncio.new_event_loop()
STATUSES = {
    "400": "StatusCode.INVALID_ARGUMENT",
    "404": "StatusCode.NOT_FOUND",
    "501": "StatusCode.UNIMPLEMENTED",
    "503": "StatusCode.UNAVAILABLE",
}


class Blocking:
    """An asyncio client that waits for each of its answers."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not asyncio.iscoroutinefunction(method):
            return method
        return lambda *values, **options: LOOP.run_until_complete(method(*values, **options))


class Wire:
    """One of the four clients, and what its protocol calls things."""

    def __init__(self, name: str, module: ModuleType, client: Any) -> None:
        self.name = name
        self.client = client
        self.module = module
        self.http = name.startswith("http")
        self.features = () if self.http else ("grpc",)
        self.json = {} if self.http else {"as_json": True}

    def input(self, name: str, array: np.ndarray, datatype: str, **options: Any) -> Any:
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **options)
        return tensor

    def wanted(self, *names: str, **options: Any) -> list[Any]:
        return [self.module.InferRequestedOutput(name, **options) for name in names]

    def sum(self, *names: str, **options: Any) -> Any:
        inputs = [self.input("a", A, "FP32"), self.input("b", B, "FP32")]
        return self.client.infer("sum", inputs, outputs=self.wanted(*names) or None, **options)

    def names(self, result: Any) -> list[str]:
        response = result.get_response()
        if self.http:
            return [output["name"] for output in response["outputs"]]
        return [output.name for output in response.outputs]

    def refused(self, call: Callable[[], Any], status: str, text: str) -> None:
        """Demand the client's own exception, with the status and the server's words."""
        try:
            call()
        except InferenceServerException as error:
            expected = status if self.http else STATUSES[status]
            assert error.status() == expected, f"expected {expected}, got {error}"
            assert text in error.message(), f"expected {text!r}, got {error.message()!r}"
            assert "exception occurred in the client" not in error.message(), error.message()
        else:
            raise AssertionError("expected an InferenceServerException, got an answer")


def identity(wire: Wire, datatype: str, array: np.ndarray, **options: Any) -> None:
    outputs = wire.wanted("y", **options) if wire.http else None
    result = wire.client.infer(
        f"identity-{datatype.lower()}",
        [wire.input("x", array, datatype, **options)],
        outputs=outputs,
    )
    equal(result.as_numpy("y"), array)


def health(wire: Wire) -> None:
    assert wire.client.is_server_live() is True
    assert wire.client.is_server_ready() is True
    assert wire.client.is_model_ready("sum") is True
    assert wire.client.is_model_ready("sum", "1") is True
    assert wire.client.is_model_ready("none") is False
    assert wire.client.is_model_ready("sum", "9") is False


def metadata(wire: Wire) -> None:
    server = wire.client.get_server_metadata(**wire.json)
    equal(server["name"], "quadriga")
    assert {"binary_tensor_data", "classification"} <= {*server["extensions"]}, server
    for version in ("", "1"):
        model = wire.client.get_model_metadata("sum", version, **wire.json)
        equal(
            (model["name"], model["platform"], model["versions"]),
            ("sum", "onnx_onnxv1", ["1"]),
        )
        equal([tensor["name"] for tensor in model["inputs"]], ["a", "b"])
        equal([tensor["datatype"] for tensor in model["outputs"]], ["FP32", "FP32"])
        equal([*map(int, model["inputs"][0]["shape"])], [-1, 4])


def ids(wire: Wire) -> None:
    def read(result: Any) -> str:
        response = result.get_response()
        return response["id"] if wire.http else response.id

    equal(read(wire.sum(request_id="night-7")), "night-7")
    assert read(wire.sum()), "expected an id where the client sends none"


def classification(wire: Wire) -> None:
    inputs = [wire.input("a", A, "FP32"), wire.input("b", B, "FP32")]
    result = wire.client.infer("sum", inputs, outputs=wire.wanted("total", class_count=2))
    equal(result.as_numpy("total").tolist(), [[b"43.000000:2", b"34.000000:3"]])
    tensor = np.zeros(SERVER["classifier"]["shape"], np.float32)
    infer_input = wire.input(SERVER["classifier"]["input"], tensor, "FP32")
    result = wire.client.infer(
        "shapes-classifier",
        [infer_input],
        outputs=wire.wanted(SERVER["classifier"]["outputs"][0], class_count=1),
        parameters={"content_type": "raw"},
    )
    ((best,),) = result.as_numpy(SERVER["classifier"]["outputs"][0]).tolist()
    value, index, label = best.decode().split(":")
    equal(label, SERVER["classifier"]["labels"][int(index)])
    assert float(value) == float(value)


def image(wire: Wire, task: str, model: str) -> None:
    array = np.array([checks.image(task)], dtype=object)
    result = wire.client.infer(model, [wire.input("image", array, "BYTES")])
    (text,) = result.as_numpy("image").tolist()
    predictions = json.loads(text)
    expected = SERVER["predictions"][task]
    equal(predictions, expected)


def image_as_json(wire: Wire) -> None:
    """An image in the binary part, its predictions as text in the JSON."""
    array = np.array([checks.image("classification")], dtype=object)
    infer_input = wire.input("image", array, "BYTES")
    requested = wire.wanted("image", binary_data=False)
    result = wire.client.infer("shapes-classifier", [infer_input], outputs=requested)
    (text,) = result.as_numpy("image").tolist()
    equal(json.loads(text), SERVER["predictions"]["classification"])


def detector_tensors(wire: Wire) -> None:
    """The graph's own tensors in and out of an image model."""
    array = np.zeros(SERVER["detector"]["shape"], np.float32)
    infer_input = wire.input(SERVER["detector"]["input"], array, "FP32")
    result = wire.client.infer("shapes-detector", [infer_input], parameters={"content_type": "raw"})
    equal(wire.names(result), SERVER["detector"]["outputs"])
    for name in SERVER["detector"]["outputs"]:
        assert result.as_numpy(name).dtype == np.float32


def not_utf8(wire: Wire) -> None:
    array = np.array([[b"\xff\x00\xfe"]], dtype=object)
    call = lambda: wire.client.infer("identity-bytes", [wire.input("x", array, "BYTES")])  # noqa: E731
    wire.refused(call, "400", "UTF-8")


def images_not_utf8(wire: Wire) -> None:
    array = np.array([b"\xff\xfe\x00"], dtype=object)
    call = lambda: wire.client.infer("shapes-detector", [wire.input("image", array, "BYTES")])  # noqa: E731
    wire.refused(call, "400", "image")


def large(wire: Wire) -> None:
    result = wire.client.infer("identity-fp32", [wire.input("x", LARGE, "FP32")])
    equal(result.as_numpy("y"), LARGE)


def subset(wire: Wire) -> None:
    for names in (["difference", "total"], ["total", "difference"], ["difference"]):
        result = wire.sum(*names)
        equal(wire.names(result), names)
        for name in names:
            equal(result.as_numpy(name), A + B if name == "total" else A - B)
    equal(wire.names(wire.sum()), ["total", "difference"])


def repository(wire: Wire) -> None:
    def index() -> dict[str, str]:
        listed = wire.client.get_model_repository_index(**wire.json)
        rows = listed if wire.http else listed["models"]
        return {row["name"]: row["state"] for row in rows}

    equal(index()["spare"], "READY")
    wire.client.unload_model("spare")
    within(lambda: not wire.client.is_model_ready("spare"))
    assert index().get("spare") != "READY"
    try:
        wire.client.infer("spare", [wire.input("x", A[:, :3], "FP32")])
    except InferenceServerException as error:
        assert "spare" in error.message(), error
    else:
        raise AssertionError("expected an unloaded model to answer nothing")
    wire.client.load_model("spare")
    within(lambda: wire.client.is_model_ready("spare"))
    equal(index()["spare"], "READY")
    result = wire.client.infer("spare", [wire.input("x", A[:, :3], "FP32")])
    equal(result.as_numpy("y"), A[:, :3] * 2)
    try:
        wire.client.load_model("none")
    except InferenceServerException as error:
        assert "none" in error.message(), error
    else:
        raise AssertionError("expected an unknown model not to load")


def load_of_files(wire: Wire) -> None:
    content = Path(SERVER["file"]).read_bytes()
    name = f"brought-{wire.name}"
    wire.client.load_model(name, config="{}", files={"file:1/model.onnx": content})
    within(lambda: wire.client.is_model_ready(name))
    result = wire.client.infer(name, [wire.input("x", A[:, :3], "FP32")])
    equal(result.as_numpy("y"), A[:, :3] * 2)


def statistics(wire: Wire) -> None:
    def read() -> dict[str, Any]:
        (model_statistics,) = wire.client.get_inference_statistics("sum", "1", **wire.json)[
            "model_stats"
        ]
        return model_statistics

    earlier = read()
    wire.sum()
    later = read()
    equal((later["name"], later["version"]), ("sum", "1"))
    for key in ("inference_count", "execution_count"):
        equal(int(later[key]) - int(earlier.get(key, 0)), 1)
    for key in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert int(later["inference_stats"][key]["count"]) > 0, key
    assert int(later["inference_stats"]["success"]["ns"]) > 0
    names = {
        row["name"] for row in wire.client.get_inference_statistics(**wire.json)["model_stats"]
    }
    assert {"sum", "shapes-detector"} <= names, names


def config(wire: Wire) -> None:
    model_config = wire.client.get_model_config("sum", **wire.json)
    model_config = model_config if wire.http else model_config["config"]
    equal(model_config["name"], "sum")
    equal([row["name"] for row in model_config["input"]], ["a", "b"])
    equal(
        {row["data_type"] for row in model_config["input"] + model_config["output"]}, {"TYPE_FP32"}
    )


def shared_memory(wire: Wire) -> None:
    infer_inputs = [wire.input("a", A, "FP32"), wire.input("b", B, "FP32")]
    infer_inputs[0].set_shared_memory("region", 16)
    wire.refused(lambda: wire.client.infer("sum", infer_inputs), "501", "shared memory")


def errors(wire: Wire) -> dict[str, tuple[Callable[[], Any], str, str]]:
    """Give wrong calls, the status and a part of the text that they are answered."""

    def infer(model: str, *tensors: Any, **options: Any) -> Callable[[], Any]:
        return lambda: wire.client.infer(
            model, [wire.input(*tensor) for tensor in tensors], **options
        )

    x = ("x", A, "FP32")
    both = [("a", A, "FP32"), ("b", B, "FP32")]
    return {
        "unknown model": (infer("none", x), "404", "'none'"),
        "unknown version": (infer("sum", *both, model_version="9"), "404", "'9'"),
        "unknown model's metadata": (lambda: wire.client.get_model_metadata("none"), "404", "'none'"),
        "a missing input": (infer("sum", both[0]), "400", "expected the inputs a, b"),
        "an unknown input": (infer("sum", *both, x), "400", "expected the inputs a, b"),
        "an input twice": (infer("sum", both[0], *both), "400", "twice"),
        "the wrong datatype": (infer("identity-fp64", x), "400", "datatype FP64, got FP32"),
        "the wrong shape": (infer("sum", ("a", A[:, :3], "FP32"), both[1]), "400", "[-1, 4]"),
        "shapes that clash": (infer("sum", ("a", A.repeat(3, 0), "FP32"), ("b", B.repeat(2, 0), "FP32")), "400", "'sum' refuses"),
        "an unknown output": (infer("sum", *both, outputs=wire.wanted("z")), "400", "got z"),
        "a failed model": (infer("broken", x), "503", "failed to load"),
        "no image": (infer("shapes-detector", ("image", np.array([b"no image"], dtype=object), "BYTES")), "400", "inputs[0] ('image'): data[0]"),
        "a tensor for an image": (infer("shapes-detector", ("image", A, "FP32")), "400", "content_type raw"),
    }  # fmt: skip


COMMON: dict[str, tuple[Callable[[Wire], None], tuple[str, ...]]] = {
    "health": (health, ()),
    "metadata": (metadata, ()),
    "ids": (ids, ()),
    "not finite": (lambda wire: identity(wire, "FP32", NOT_FINITE), ()),
    "empty tensor": (lambda wire: identity(wire, "FP32", A[:0]), ()),
    "empty BYTES": (lambda wire: identity(wire, "BYTES", np.zeros((0, 2), object)), ()),
    "outputs asked for, in their order": (subset, ()),
    "classification": (classification, ()),
    "BYTES that are no UTF-8, for a graph": (not_utf8, ()),
    "BYTES that are no image": (images_not_utf8, ()),
    "tensors of the detector's graph": (detector_tensors, ()),
    "32 MiB": (large, ()),
    "shared memory": (shared_memory, ()),
    "repository": (repository, ("repository",)),
    "a model's files": (load_of_files, ("repository",)),
    "statistics": (statistics, ("statistics",)),
    "config": (config, ("config",)),
}


def add_common(wire: Wire) -> None:
    """Add what all four clients do alike."""
    for name, (check, features) in COMMON.items():
        checks.add(
            f"{wire.name}: {name}", lambda check=check: check(wire), *wire.features, *features
        )
    for datatype, array in ARRAYS.items():
        checks.add(
            f"{wire.name}: {datatype}",
            lambda d=datatype, a=array: identity(wire, d, a),
            *wire.features,
        )
    for task, model in SERVER["models"].items():
        checks.add(
            f"{wire.name}: image, {task}", lambda t=task, m=model: image(wire, t, m), *wire.features
        )
    for name, row in errors(wire).items():
        checks.add(
            f"{wire.name}: error, {name}", lambda row=row: wire.refused(*row), *wire.features
        )
