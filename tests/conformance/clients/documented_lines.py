"""Lines of HTTP that documents of TensorFlow Serving, KServe and Triton print, with the answers they print.

TensorFlow Serving's client stubs want all of TensorFlow; its documents talk to it with curl.
"""

import base64
import gzip
import json
from http.client import HTTPConnection
from typing import Any

from checks import Checks, equal

checks = Checks()
SERVER = checks.server
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
"""What `curl -d` sends."""


def send(
    method: str, path: str, body: bytes | str | None = None, headers: Any = None
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(SERVER["http"], timeout=60)
    try:
        sent_headers = FORM if body is not None and headers is None else headers or {}
        connection.request(method, path, body, sent_headers)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return response.status, received, response.read()
    finally:
        connection.close()


def answered(method: str, path: str, body: Any, expected: Any) -> None:
    text = body if body is None or isinstance(body, str) else json.dumps(body)
    status, _, answer = send(method, path, text)
    assert status == 200, answer
    equal(json.loads(answer), expected)


def refused(method: str, path: str, body: Any, status: int, text: str) -> None:
    encoded = body if body is None or isinstance(body, str) else json.dumps(body)
    actual_status, headers, answer = send(method, path, encoded)
    equal(actual_status, status)
    equal(headers["content-type"], "application/json")
    error = json.loads(answer)
    equal(list(error), ["error"])
    assert text.lower() in error["error"].lower(), f"expected {text!r}, got {error['error']!r}"


THREE, TWO = "/v1/models/half_plus_three", "/v1/models/half_plus_two"
ANSWERS: dict[str, tuple[str, str, Any, Any]] = {
    "rows": ("POST", f"{THREE}:predict", {"instances": [1.0, 2.0, 5.0]}, {"predictions": [3.5, 4.0, 5.5]}),
    "rows, by version": ("POST", f"{THREE}/versions/1:predict", {"instances": [1.0]}, {"predictions": [3.5]}),
    "rows, in any case of the path": ("POST", "/V1/Models/half_plus_three:Predict", {"instances": [1.0]}, {"predictions": [3.5]}),
    "rows of lists": ("POST", f"{TWO}:predict", {"instances": [[1.0, 2.0], [3.0, 4.0]]}, {"predictions": [[2.5, 3.0], [3.5, 4.0]]}),
    "columns": ("POST", f"{THREE}:predict", {"signature_name": "serving_default", "inputs": [3.0, 4.0]}, {"predictions": [4.5, 5.0], "outputs": [4.5, 5.0]}),
    "columns, named": ("POST", f"{THREE}:predict", {"inputs": {"x": [3.0, 4.0]}}, {"outputs": [4.5, 5.0]}),
    "several outputs, rows": ("POST", "/v1/models/sum:predict", {"instances": [{"a": [1, 2, 3, 4], "b": [1, 1, 1, 1]}]}, {"predictions": [{"total": [2, 3, 4, 5], "difference": [0, 1, 2, 3]}]}),
    "several outputs, columns": ("POST", "/v1/models/sum:predict", {"inputs": {"a": [[1, 2, 3, 4]], "b": [[1, 1, 1, 1]]}}, {"outputs": {"total": [[2, 3, 4, 5]], "difference": [[0, 1, 2, 3]]}}),
    "what stands behind the object": ("POST", f"{THREE}:predict", '{"instances": [1.0]} trailing', {"predictions": [3.5]}),
}  # fmt: skip
for name, row in ANSWERS.items():
    checks.add(f"v1: {name}", lambda row=row: answered(*row), "v1")

ERRORS: dict[str, tuple[str, str, Any, int, str]] = {
    "an unknown model": ("POST", "/v1/models/none:predict", {"instances": [1.0]}, 404, "none"),
    "an unknown version": ("POST", f"{THREE}/versions/99:predict", {"instances": [1.0]}, 404, "99"),
    "no body": ("POST", f"{THREE}:predict", "", 400, ""),
    "no JSON": ("POST", f"{THREE}:predict", "{", 400, ""),
    "no object": ("POST", f"{THREE}:predict", [1], 400, ""),
    "neither": ("POST", f"{THREE}:predict", {}, 400, "instances"),
    "both": ("POST", f"{THREE}:predict", {"instances": [1.0], "inputs": [1.0]}, 400, "instances"),
    "no list": ("POST", f"{THREE}:predict", {"instances": 1}, 400, "instances"),
    "no instances": ("POST", f"{THREE}:predict", {"instances": "x"}, 400, "instances"),
    "a text": ("POST", f"{THREE}:predict", {"instances": ["x"]}, 400, "float"),
    "an unknown signature": ("POST", f"{THREE}:predict", {"signature_name": "x", "instances": [1.0]}, 400, "signature"),
    "a signature that is no text": ("POST", f"{THREE}:predict", {"signature_name": 1, "instances": [1.0]}, 400, "signature_name"),
    "a missing input": ("POST", "/v1/models/sum:predict", {"inputs": {"a": [[1, 2, 3, 4]]}}, 400, "b"),
    "classify of a tensor model": ("POST", f"{THREE}:classify", {"examples": [{"x": 1.0}]}, 400, ""),
}  # fmt: skip
for name, row in ERRORS.items():
    checks.add(f"v1: error, {name}", lambda row=row: refused(*row), "v1")


@checks("v1: numbers as TensorFlow Serving writes them", "v1")
def numbers() -> None:
    """Floats have a point or an exponent, what is not finite has its token, all are float32's own."""
    body = '{"instances": [NaN, Infinity, -Infinity, 17999994, 1435774380, 0.4]}'
    status, _, answer = send("POST", f"{THREE}:predict", body)
    assert status == 200, answer
    predictions = json.loads(answer)["predictions"]
    assert predictions[0] != predictions[0], predictions
    equal(predictions[1:3], [float("inf"), float("-inf")])
    equal(predictions[3], 9e6)
    equal(predictions[5], 3.2)
    text = answer.decode().replace(" ", "").replace("\n", "")
    assert "NaN,Infinity,-Infinity,9e+06," in text, text


@checks("v1: status and metadata", "v1")
def status_and_metadata() -> None:
    status, _, answer = send("GET", THREE)
    equal(status, 200)
    body = json.loads(answer)
    equal((body["name"], body["ready"]), ("half_plus_three", True))
    (version,) = body["model_version_status"]
    equal((version["version"], version["state"]), ("1", "AVAILABLE"))
    equal(version["status"], {"error_code": "OK", "error_message": ""})
    status, _, answer = send("GET", f"{THREE}/metadata")
    equal(status, 200)
    body = json.loads(answer)
    equal((body["model_spec"]["name"], body["model_spec"]["version"]), ("half_plus_three", "1"))
    signature = body["metadata"]["signature_def"]["signature_def"]["serving_default"]
    equal(signature["inputs"]["x"]["dtype"], "DT_FLOAT")
    equal(signature["inputs"]["x"]["tensor_shape"]["dim"][0]["size"], "-1")
    equal(signature["method_name"], "tensorflow/serving/predict")
    equal(send("GET", "/v1/models/broken")[0], 503)
    refused("GET", "/v1/models/none", None, status=404, text="none")
    status, _, answer = send("GET", "/v1/models")
    equal(status, 200)
    assert "sum" in json.loads(answer)["models"], answer
    equal(json.loads(send("GET", "/")[2])["status"], "alive")


@checks("v1: classify an image", "v1")
def classify() -> None:
    image = {"b64": base64.b64encode(checks.image("classification")).decode()}
    body = json.dumps({"examples": [{"image": image}]})
    status, _, answer = send("POST", "/v1/models/shapes-classifier:classify", body)
    assert status == 200, answer
    (row,) = json.loads(answer)["results"]
    best = max(row, key=lambda pair: pair[1])
    expected = SERVER["predictions"]["classification"][0]
    equal(best[0], expected.get("label", expected.get("class_label")))
    equal([label for label, _ in row], [text for text in SERVER["classifier"]["labels"] if text])


@checks("v2: any content type, and none")
def content_types() -> None:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor], "model_name": "is ignored"})
    for headers in ({}, FORM, {"Content-Type": "text/plain"}, {"Content-Type": "a/b; c"}):
        equal(send("POST", "/v2/models/identity-fp32/infer", body, headers)[0], 200)


@checks("v2: a slash at the end, and HEAD")
def slash_and_head() -> None:
    for path in (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/sum",
        "/v2/models/sum/ready",
    ):
        equal(send("GET", path)[0], 200)
        equal(send("GET", f"{path}/")[0], 200)
        status, _, body = send("HEAD", path)
        equal((status, body), (200, b""))


@checks("v2: bodies of health")
def bodies_of_health() -> None:
    answered("GET", "/v2/health/live", None, {"live": True})
    status, _, answer = send("GET", "/v2/health/ready")
    ready = json.loads(answer)
    equal((status, ready["live"], ready["ready"]), (200, True, True))
    answered("GET", "/v2/models/sum/ready", None, {"name": "sum", "ready": True})
    equal(send("GET", "/v2/models/broken/ready")[0], 400)
    equal(send("GET", "/v2/models/none/ready")[0], 404)


@checks("v2: errors have one shape")
def errors() -> None:
    refused("GET", "/none", None, status=404, text="path")
    refused("GET", "/v2/none", None, status=404, text="path")
    refused("GET", "/v2/models/none", None, status=404, text="none")
    refused("GET", "/v2/models/sum/infer", None, status=405, text="POST")
    refused("POST", "/v2/models/sum/infer", "{", status=400, text="JSON")
    refused("POST", "/v2/models/sum/infer", {"inputs": [], "id": 7}, status=400, text="id")


def one(datatype: str, data: Any, shape: Any = None, **further: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": shape or [1, 1], "datatype": datatype, "data": data}
    return {"inputs": [{**tensor, **further}]}


COERCED: dict[str, tuple[str, dict[str, Any], Any]] = {
    "integers for floats": ("fp32", one("FP32", [7]), [7.0]),
    "numbers for half floats": ("fp16", one("FP16", [0.5]), [0.5]),
    "nested data": ("int8", one("INT8", [[1, 2], [3, 4]], [2, 2]), [1, 2, 3, 4]),
    "null for what is optional": (
        "int8",
        {**one("INT8", [7], parameters=None), "id": None, "outputs": None, "parameters": None},
        [7],
    ),
    "no outputs for all": ("int8", {**one("INT8", [7]), "outputs": []}, [7]),
    "members that are unknown": ("int8", {**one("INT8", [7], extra=[1]), "model_name": "x"}, [7]),
}
"""What other servers refuse or answer wrongly, and is taken here."""


def coerced(datatype: str, body: dict[str, Any], expected: Any) -> None:
    status, _, answer = send("POST", f"/v2/models/identity-{datatype}/infer", json.dumps(body))
    assert status == 200, answer
    equal(json.loads(answer)["outputs"][0]["data"], expected)


for name, row in COERCED.items():
    checks.add(f"v2: taken, {name}", lambda row=row: coerced(*row))

DAMAGED: dict[str, tuple[str, dict[str, Any]]] = {
    "a fraction for an integer": ("int32", one("INT32", [1.5])),
    "300 for UINT8": ("uint8", one("UINT8", [300])),
    "-1 for UINT8": ("uint8", one("UINT8", [-1])),
    "1e39 for FP32": ("fp32", one("FP32", [1e39])),
    "a text for BOOL": ("bool", one("BOOL", ["false"])),
    "a number for BOOL": ("bool", one("BOOL", [1])),
    "a number for BYTES": ("bytes", one("BYTES", [7])),
    "null for a number": ("fp32", one("FP32", [None])),
    "ragged data": ("fp32", one("FP32", [[1], [2, 3]], [1, 3])),
    "a negative size": ("fp32", one("FP32", [1], [-2, 1])),
    "a shape of another size": ("fp32", one("FP32", [1, 2])),
    "BF16": ("fp32", one("BF16", [1])),
    "an id that is a number": ("fp32", {**one("FP32", [1]), "id": 7}),
    "data and binary data": ("fp32", one("FP32", [1], parameters={"binary_data_size": 4})),
    "an output that is unknown": ("fp32", {**one("FP32", [1]), "outputs": [{"name": "z"}]}),
}
"""What other servers damage in silence, and is refused here."""
for name, (kind, body) in DAMAGED.items():
    path = f"/v2/models/identity-{kind}/infer"
    checks.add(
        f"v2: refused, {name}", lambda p=path, b=body: refused("POST", p, b, status=400, text="")
    )


@checks("v2: encodings that are none")
def encodings() -> None:
    body = json.dumps(one("FP32", [1])).encode()
    for encoding, sent, expected in (
        ("gzip", body, 400),
        ("deflate", body, 400),
        ("br", body, 415),
        ("gzip", gzip.compress(body)[:-3], 400),
    ):
        status, headers, answer = send(
            "POST", "/v2/models/identity-fp32/infer", sent, {"Content-Encoding": encoding}
        )
        equal((status, headers["content-type"]), (expected, "application/json"))
        assert encoding in json.loads(answer)["error"], answer


@checks("v2: ids in any script")
def ids() -> None:
    path = "/v2/models/identity-fp32/infer"
    status, _, answer = send("POST", path, json.dumps({**one("FP32", [1]), "id": "Nacht-ä€"}))
    equal((status, json.loads(answer)["id"]), (200, "Nacht-ä€"))
    status, _, answer = send(
        "POST", path, json.dumps(one("FP32", [1])), {"X-Request-ID": "night-7"}
    )
    equal((status, json.loads(answer)["id"]), (200, "night-7"))


@checks("v2: wrong binary headers")
def binary_headers() -> None:
    tensor = {
        "name": "x",
        "shape": [1, 1],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 4},
    }
    text = json.dumps({"inputs": [tensor]}).encode()
    for length in ("-1", "x", str(len(text) + 5), "9" * 30, "1.5", ""):
        status, _, answer = send(
            "POST", "/v2/models/identity-fp32/infer", text + b"\0\0\0\0", {"Inference-Header-Content-Length": length}
        )  # fmt: skip
        equal(status, 400)
        assert b"Inference-Header-Content-Length" in answer, answer


@checks("v2: repository", "repository")
def repository() -> None:
    for body in (None, "", "{}", '{"ready": true}'):
        status, _, answer = send("POST", "/v2/repository/index", body)
        equal(status, 200)
        rows = {row["name"]: row for row in json.loads(answer)}
        equal(rows["sum"]["state"], "READY")
    refused("POST", "/v2/repository/models/none/load", "", status=404, text="none")
    refused("POST", "/v2/repository/models/none/unload", "", status=404, text="none")


@checks("v2: statistics", "statistics")
def statistics() -> None:
    for path in ("/v2/models/stats", "/v2/models/sum/stats", "/v2/models/sum/versions/1/stats"):
        status, _, answer = send("GET", path)
        equal(status, 200)
        rows = {row["name"]: row for row in json.loads(answer)["model_stats"]}
        assert {"inference_count", "execution_count", "inference_stats"} <= {*rows["sum"]}, rows[
            "sum"
        ]


@checks("v2: config", "config")
def config() -> None:
    status, _, answer = send("GET", "/v2/models/sum/config")
    equal(status, 200)
    config_json = json.loads(answer)
    equal(config_json["name"], "sum")
    equal([row["data_type"] for row in config_json["input"]], ["TYPE_FP32", "TYPE_FP32"])
    assert "max_batch_size" in config_json, config_json


@checks("v2: generate", "generate")
def generate() -> None:
    image = base64.b64encode(checks.image("detection")).decode()
    body = json.dumps(
        {"text_input": "What is it?", "image": image, "parameters": {"max_new_tokens": 4}}
    )
    status, headers, answer = send("POST", "/v2/models/shapes-image-text/generate", body)
    assert status == 200, answer
    response = json.loads(answer)
    equal(response["model_name"], "shapes-image-text")
    assert isinstance(response["text_output"], str), response
    status, headers, answer = send("POST", "/v2/models/shapes-image-text/generate_stream", body)
    assert status == 200, answer
    assert headers["content-type"].startswith("text/event-stream"), headers
    events = [line for line in answer.decode().split("\n\n") if line]
    assert all(line.startswith("data: {") for line in events), events
    refused("POST", "/v2/models/none/generate", body, status=404, text="none")


checks.run()
