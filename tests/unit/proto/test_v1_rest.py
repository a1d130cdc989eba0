"""Everything under /v1 over a server that answers what it was sent: bodies, paths, states, texts."""

import asyncio
import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.proto.access import ANYBODY
from quadriga.proto.errors import ModelNotReady, NotFound
from quadriga.proto.http.operations import Dispatcher, WireOptions
from quadriga.proto.http.v1 import operations
from quadriga.proto.messages import InferResponse, ModelInfo, ModelStatus, Tensor, TensorInfo

TENSORS = [TensorInfo("x", "FP32", (-1, 2))]
IMAGE = [TensorInfo("image", "BYTES", (-1,))]


class Score(msgspec.Struct):
    label: str
    score: float


def model(name, task="TENSOR", inputs=TENSORS, outputs=None, **more):
    return ModelInfo(
        name,
        "2",
        ["2", "1"],
        platform="test",
        task=task,
        inputs=inputs,
        outputs=outputs or inputs,
        takes_images=inputs is IMAGE,
        **more,
    )


MODELS = {
    "echo": model("echo", version_labels=("stable",)),
    "two": model(
        "two", inputs=[TensorInfo("a", "FP32", (-1,)), TensorInfo("b_bytes", "BYTES", (-1,))]
    ),
    "half": model("half", inputs=[TensorInfo("x", "FP32", (-1,))]),
    "dogs": model("dogs", "IMAGE_CLASSIFICATION", IMAGE, labels=("cat", "dog")),
    "irises": model(
        "irises", "IMAGE_CLASSIFICATION", labels=("cat", "dog"), features=("length", "width")
    ),
    "boxes": model("boxes", "OBJECT_DETECTION", IMAGE),
}


class EchoV1:
    """A server whose models answer their inputs, and an image by two labels."""

    def __init__(self):
        self.requests = []

    def model_info(self, name, version):
        if name == "slow":
            raise ModelNotReady("model 'slow' version 1 is still loading")
        if name not in MODELS or version not in (None, "1", "2"):
            raise NotFound("none")
        info = MODELS[name]
        return msgspec.structs.replace(info, version_labels=()) if version == "1" else info

    def model_unready_reason(self, name, version):
        self.model_info(name, version)

    def model_statuses(self):
        return [
            ModelStatus("echo", "2", "READY"),
            ModelStatus("echo", "1", "FAILED", "a reason"),
            ModelStatus("slow", "1", "LOADING"),
        ]

    def infer(self, request):
        self.requests.append(request)
        outputs = request.inputs
        if MODELS[request.model].task != "TENSOR":
            answer = [Score("dog", 0.75), Score("cat", 0.25)]
            outputs = [Tensor(tensor.name, "BYTES", (1,), [answer]) for tensor in request.inputs]
        return InferResponse(request.model, "2", request.id, outputs, inference_ids=["5", "6"])

    def explain(self, request):
        return self.infer(request), [{"method": "none"}]

    async def run(self, job, **_):
        return job()


def ask(method, path, body=b"", headers=(), echo=None, **options):
    """Send a request through the table: status, body, headers."""
    echo = echo or EchoV1()
    table = Dispatcher(
        echo, operations(echo, WireOptions(server_version="1", **options)), max_body_bytes=10**6
    )
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    path_match = table.match(path, method)
    assert path_match is not None
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    asyncio.run(
        table.respond(path_match, {"method": method, "headers": raw}, receive, send, caller=ANYBODY)
    )
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


def post(path, body, **more):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer, _ = ask("POST", f"/v1/models/{path}", body, **more)
    return status, json.loads(answer)


ANSWERS = {
    "rows": ("echo:predict", {"instances": [[1, 2], [3, 4]]}, {"predictions": [[1.0, 2.0], [3.0, 4.0]]}),
    "columns": ("echo:predict", {"inputs": [[1, 2]]}, {"predictions": [[1.0, 2.0]], "outputs": [[1.0, 2.0]]}),
    "columns by name": ("echo:predict", {"inputs": {"x": [[1, 2]], "y": 1}}, {"outputs": [[1.0, 2.0]]}),
    "a signature": ("echo:predict", {"signature_name": "serving_default", "inputs": [[1, 2]]}, {"predictions": [[1.0, 2.0]], "outputs": [[1.0, 2.0]]}),
    "null is absent": ("echo:predict", {"signature_name": None, "parameters": None, "instances": [[1, 2]]}, {"predictions": [[1.0, 2.0]]}),
    "scalars by columns": ("two:predict", {"inputs": {"a": 1, "b_bytes": "x"}}, {"outputs": {"a": 1.0, "b_bytes": {"b64": "eA=="}}}),
    "objects are rows": ("two:predict", {"inputs": [{"a": 1, "b_bytes": "x"}, {"a": 2, "b_bytes": ""}]}, {"predictions": [{"a": 1.0, "b_bytes": {"b64": "eA=="}}, {"a": 2.0, "b_bytes": {"b64": ""}}], "outputs": {"a": [1.0, 2.0], "b_bytes": [{"b64": "eA=="}, {"b64": ""}]}}),
    "objects of one input are rows": ("half:predict", {"inputs": [{"x": 1}, {"x": 2}]}, {"predictions": [1.0, 2.0], "outputs": [1.0, 2.0]}),
    "no rows": ("half:predict", {"inputs": []}, {"predictions": [], "outputs": []}),
    "several, by rows": ("two:predict", {"instances": [{"a": 1, "b_bytes": {"b64": "AA=="}}]}, {"predictions": [{"a": 1.0, "b_bytes": {"b64": "AA=="}}]}),
    "several, by columns": ("two:predict", {"inputs": {"a": [1, 2], "b_bytes": ["x"]}}, {"outputs": {"a": [1.0, 2.0], "b_bytes": [{"b64": "eA=="}]}}),
    "a version": ("echo/versions/2:predict", {"instances": [[1, 2]]}, {"predictions": [[1.0, 2.0]]}),
    "a label": ("echo/labels/stable:predict", {"instances": [[1, 2]]}, {"predictions": [[1.0, 2.0]]}),
    "images": ("dogs:predict", {"instances": ["AA==", {"b64": "AA=="}]}, {"predictions": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]] * 2}),
    "images by a list": ("dogs:predict", {"inputs": ["AA=="]}, {"predictions": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]], "outputs": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]]}),
    "a data URL": ("dogs:predict", {"instances": [{"b64": "data:image/png;base64,AA=="}]}, {"predictions": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]]}),
    "an image with a key": ("dogs:predict", {"instances": [{"b64": "AA==", "key": "1"}]}, {"predictions": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]]}),
    "a byte order mark": ("echo:predict", b'\xef\xbb\xbf{"instances": [[1, 2]]}', {"predictions": [[1.0, 2.0]]}),
    "images by columns": ("dogs:predict", {"inputs": {"image": ["AA=="]}}, {"outputs": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]]}),
    "classes in their order": ("dogs:classify", {"examples": [{"image/encoded": {"b64": "AA=="}}]}, {"results": [[["cat", 0.25], ["dog", 0.75]]]}),
    "classify by its method": ("dogs:classify", {"signature_name": "tensorflow/serving/classify", "examples": [{"x": ["AA=="]}]}, {"results": [[["cat", 0.25], ["dog", 0.75]]]}),
    "rows to labels": ("irises:predict", {"instances": [[1, 2]]}, {"predictions": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]]}),
    "rows to labels by columns": ("irises:predict", {"inputs": {"x": [[1, 2]]}}, {"outputs": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]]}),
    "classes of rows in their order": ("irises:classify", {"examples": [{"x": [1.0, 2.5]}]}, {"results": [[["cat", 0.25], ["dog", 0.75]]]}),
    "classes of named features": ("irises:classify", {"examples": [{"width": [2], "length": 1.5}], "context": {"colour": 1}}, {"results": [[["cat", 0.25], ["dog", 0.75]]]}),
    "regress": ("half:regress", {"examples": [{"x": 1.5}, {"x": [2.0]}], "context": {}}, {"results": [1.5, 2.0]}),
    "regress with a context": ("half:regress", {"examples": [{"y": 1}], "context": {"x": 3}}, {"results": [3.0]}),
    "explain": ("boxes:explain", {"instances": ["AA=="]}, {"predictions": [[{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]], "explanations": [{"method": "none"}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_requests_are_answered_as_documented(name):
    path, body, expected = ANSWERS[name]
    assert post(path, body) == (200, expected)


IMAGES = {
    "base64": "AQI=",
    "b64": {"b64": "AQI="},
    "any one feature": {"picture": "AQI="},
    "image_bytes": {"image_bytes": {"b64": "AQI="}},
    "beside a key": {"image_bytes": {"b64": "AQI="}, "key": "  1"},
    "with parameters": {"image": {"b64": "AQI="}, "parameters": {"action": "detect"}},
    "a list of one": {"image": [{"b64": "AQI="}]},
}


@pytest.mark.parametrize("name", IMAGES)
def test_image_is_read_in_every_form(name):
    echo = EchoV1()
    body = {"instances": [IMAGES[name]], "parameters": {"score_threshold": 0.5}}
    assert post("boxes:predict", body, echo=echo)[0] == 200
    (request,) = echo.requests
    assert request.parameters == {"score_threshold": 0.5}
    (tensor,) = request.inputs
    (image,) = tensor.data
    assert (image if isinstance(image, bytes) else base64.b64decode(image)) == b"\x01\x02"
    parameters = {"action": "detect"} if name == "with parameters" else {}
    assert tensor.parameters == parameters


REFUSED = {
    "nothing": ("echo:predict", b"", "The document is empty"),
    "neither key": ("echo:predict", {}, "Missing 'inputs' or 'instances' key"),
    "a key nearly right": ("echo:predict", {"instance": [[1, 2]]}, "key; did you mean 'instances' by 'instance'?"),
    "a key in capitals": ("boxes:predict", {"Inputs": ["AA=="]}, "key; did you mean 'inputs' by 'Inputs'?"),
    "both keys": ("echo:predict", {"inputs": [], "instances": []}, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"),
    "instances no list": ("echo:predict", {"instances": {}}, "Expecting 'instances' to be an list/array"),
    "no instances": ("echo:predict", {"instances": []}, "No values in 'instances' array"),
    "a signature's type": ("echo:predict", {"signature_name": 5, "instances": [1]}, "'signature_name' key must be a string value."),
    "an unknown signature": ("echo:predict", {"signature_name": "x", "instances": [1]}, 'Serving signature name: "x" not found in signature def'),
    "objects beside values": ("half:predict", {"inputs": [{"x": 1}, 2]}, "is not of expected type: float"),
    "parameters": ("echo:predict", {"parameters": [], "instances": [[1, 2]]}, "expected parameters to be an object, got []"),
    "no image": ("boxes:predict", {"instances": [7]}, "instances[0]: expected an image as base64"),
    "two images": ("boxes:predict", {"instances": [{"a": "AA==", "b": "AA=="}]}, "expected one image, got the features 'a, b'"),
    "no feature": ("boxes:predict", {"instances": [{"parameters": {}}]}, "expected one image"),
    "bad base64": ("boxes:predict", {"instances": [{"b64": "?"}]}, "Unable to base64 decode"),
    "an image's parameters": ("boxes:predict", {"instances": [{"a": "AA==", "parameters": 1}]}, "instances[0]: expected parameters to be an object"),
    "no classes": ("boxes:classify", {"examples": [{"a": "AA=="}]}, "Expected classification signature method_name to be tensorflow/serving/classify. Was: tensorflow/serving/predict"),
    "another method": ("half:classify", {"signature_name": "tensorflow/serving/regress", "examples": [{}]}, "Was: tensorflow/serving/regress"),
    "no regression": ("echo:regress", {"examples": [{"x": 1}]}, "Expected regression signature method_name to be tensorflow/serving/regress"),
    "no examples key": ("half:regress", {}, "key 'examples' is expected and was not found"),
    "no examples key to classify": ("dogs:classify", {}, "When method is classify, key 'examples' is expected and was not found"),
    "examples no list": ("half:regress", {"examples": {}}, "Expecting 'examples' value to be an list/array"),
    "no examples": ("half:regress", {"examples": []}, "'examples' value is an empty array"),
    "an example a list": ("half:regress", {"examples": [[]]}, "Example must be JSON object but got JSON Array"),
    "a context a list": ("half:regress", {"examples": [{"x": 1}], "context": [1]}, "Example must be JSON object"),
    "two kinds": ("half:regress", {"examples": [{"x": [10, 10.0]}]}, "Unexpected element type in feature: x"),
    "uint64": ("half:regress", {"examples": [{"x": 2**63}]}, "Only int64_t is supported"),
    "a feature null": ("half:regress", {"examples": [{"x": None}]}, "has element with unexpected JSON type"),
    "a feature twice": ("half:regress", {"examples": [{"x": 1}], "context": {"x": 1}}, "'x' in context or examples, got both"),
    "parameters of an example": ("dogs:classify", {"examples": [{"x": "AA==", "parameters": {}}]}, "has element with unexpected JSON type"),
    "a named feature missing": ("irises:classify", {"examples": [{"width": 1}]}, "Feature: length is required but could not be found."),
    "a named feature of two": ("irises:classify", {"examples": [{"width": 1, "length": [1, 2]}]}, "found at incorrect level"),
    "a feature missing": ("half:regress", {"examples": [{"y": 1}]}, "Feature: x (data type: float) is required but could not be found."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_is_refused(name):
    path, body, expected_text = REFUSED[name]
    status, answer = post(path, body)
    assert (status, list(answer)) == (400, ["error"])
    assert expected_text in answer["error"]


def test_rows_need_a_batch():
    class Odd(EchoV1):
        def infer(self, request):
            return InferResponse("two", "2", "", self.outputs, inference_ids=[])

    echo = Odd()
    body = {"instances": [{"a": 1, "b_bytes": "x"}]}
    echo.outputs = [Tensor("a", "BYTES", (1,), ["x"]), Tensor("b", "BYTES", (2,), ["x", "y"])]
    text = "Tensor name: b has inconsistent batch size: 2 expecting: 1"
    assert post("two:predict", body, echo=echo) == (400, {"error": text})
    echo.outputs = [Tensor("a", "BYTES", (), ["x"])]
    assert "has no shape information" in post("two:predict", body, echo=echo)[1]["error"]
    echo.outputs = [Tensor("a", "BYTES", (0,), [])]
    assert post("two:predict", body, echo=echo) == (200, {"predictions": []})


@pytest.mark.parametrize(
    ("method", "path", "status", "expected_text"),
    [
        ("POST", "/v1/models/none:predict", 404, "Servable not found for request: Latest(none)"),
        ("POST", "/v1/models/echo/versions/99:predict", 404, "Servable not found for request: Specific(echo, 99)"),
        ("POST", "/v1/models/echo/labels/x:predict", 400, "Unrecognized servable version label: x"),
        ("POST", "/v1/models/echo/versions/18446744073709551615:predict", 400, "Failed to convert version: 18446744073709551615 to numeric."),
        ("POST", "/v1/models/slow:predict", 503, "still loading"),
        ("GET", "/v1/models/slow", 503, "Model with name slow is not ready."),
        ("GET", "/v1/models/none", 404, "Could not find any versions of model none"),
        ("GET", "/v1/models/echo/versions/9", 404, "Could not find version 9 of model echo"),
        ("GET", "/v1/models/none/metadata", 404, "Servable not found for request: Latest(none)"),
        ("GET", "/v1/models/echo:predict", 400, "Malformed request: GET /v1/models/echo:predict"),
        ("POST", "/v1/models/echo", 400, "Malformed request: POST /v1/models/echo"),
        ("POST", "/v1/models/echo:train", 400, "Malformed request: POST /v1/models/echo:train: expected one of :predict, :explain, :classify, :regress after models/echo, got :train"),
        ("POST", "/v1/models/echo/versions/1/labels/x:predict", 400, "Malformed request"),
        ("GET", "/v1/models/a:b:predict", 400, "Malformed request: GET /v1/models/a:b:predict"),
        ("GET", "/v1/elsewhere/and/on", 400, "Malformed request: GET /v1/elsewhere/and/on"),
        ("PUT", "/v1/models/echo", 405, "expected GET, got PUT"),
    ],
)  # fmt: skip
def test_paths_that_are_refused(method, path, status, expected_text):
    actual_status, body, _ = ask(method, path, b'{"instances": [[1, 2]]}')
    assert actual_status == status
    assert expected_text in json.loads(body)["error"]


def test_a_model_s_state_is_kserve_s_and_tf_serving_s():
    status, body, _ = ask("GET", "/V1/Models/echo")
    assert status == 200
    assert json.loads(body) == {
        "name": "echo",
        "ready": True,
        "model_version_status": [
            {"version": "2", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
            {"version": "1", "state": "END", "status": {"error_code": "UNKNOWN", "error_message": "a reason"}},
        ],
    }  # fmt: skip
    for path in ("/v1/models/echo/versions/2", "/v1/models/echo/labels/stable"):
        (state,) = json.loads(ask("GET", path)[1])["model_version_status"]
        assert state["version"] == "2"
    assert json.loads(ask("GET", "/v1/models")[1]) == {"models": ["echo", "slow"]}
    assert json.loads(ask("GET", "/")[1])["status"] == "alive"


def test_metadata_describes_signatures():
    metadata = json.loads(ask("GET", "/v1/models/half/metadata")[1])
    assert metadata["model_spec"] == {"name": "half", "signature_name": "", "version": "2"}
    described = metadata["metadata"]["signature_def"]["signature_def"]
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    tensor = {"x": {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "x:0"}}
    assert described["serving_default"] == {
        "inputs": tensor,
        "outputs": tensor,
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }
    assert list(described) == ["serving_default", "tensorflow/serving/regress"]


def test_the_stored_inferences_are_named_in_a_header():
    headers = ask("POST", "/v1/models/half:predict", b'{"instances": [1]}')[2]
    assert headers[b"quadriga-inference-ids"] == b"5,6"


@given(
    st.binary(), st.sampled_from(["echo:predict", "dogs:classify", "half:regress", "boxes:explain"])
)
def test_any_bytes_are_answered_or_refused(body, path):
    assert ask("POST", f"/v1/models/{path}", body)[0] in (200, 400)


SHAPED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["x", "a", "b64", "parameters", "image"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["instances", "inputs", "examples", "context", "signature_name", "parameters"]
)


@given(
    st.dictionaries(KEYS, SHAPED, max_size=3),
    st.sampled_from([*MODELS]),
    st.sampled_from(["predict", "classify", "regress"]),
)
def test_any_document_is_answered_or_refused(document, name, method):
    assert post(f"{name}:{method}", document)[0] in (200, 400)


def test_named_features_are_a_row_in_the_order_of_the_model():
    echo = EchoV1()
    body = {"examples": [{"width": [2], "length": 1.5, "other": 9}, {"length": 3, "width": 4}]}
    assert post("irises:classify", body, echo=echo)[0] == 200
    ((tensor,),) = [request.inputs for request in echo.requests]
    assert (tensor.name, tensor.data.tolist()) == ("x", [[1.5, 2.0], [3.0, 4.0]])


ACCEPTED = [  # Accept, the status, the Location
    (None, 200, None),
    ("*/*", 200, None),
    ("application/json", 200, None),
    ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", 302, b"console/"),
    ("Text/HTML", 302, b"console/"),
]


@pytest.mark.parametrize(("accept", "status", "location"), ACCEPTED)
def test_a_browser_is_led_from_the_root_to_the_console(accept, status, location):
    sent = [] if accept is None else [("Accept", accept)]
    answered, body, headers = ask("GET", "/", headers=sent)
    assert (answered, dict(headers).get(b"location")) == (status, location)
    assert dict(headers)[b"vary"] == b"accept"
    places = {"console": "console/", "openapi": "schema/openapi.json"}
    assert (json.loads(body) if body else None) == (
        None if location else {"status": "alive", **places}
    )
