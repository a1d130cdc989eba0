"""Classifiers of rows of features over the wire: one answer by every protocol, stored, found again and evaluated."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.row_models import IRISES, ROW_TOML, linear, probabilities
from tests.server_process import ServerProcess, quadriga

ROWS = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
EXPECTED = probabilities(ROWS)
"""Scores of each row, in the order of the labels."""

Scores = list[dict[str, float]]
"""Scores by label of each row."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve a classifier of irises over HTTP and gRPC."""
    models = tmp_path_factory.mktemp("rows") / "models"
    linear(models / "irises" / "model.onnx", classes=(0, 1, 2))
    (models / "irises" / "model.toml").write_text(ROW_TOML)
    (models / "irises" / "labels.txt").write_text("\n".join(IRISES))
    linear(models / "kept" / "model.onnx")
    toml = 'features = ["a", "b", "c", "d"]\n[store]\ninputs = "all"\n'
    (models / "kept" / "model.toml").write_text(ROW_TOML + toml)
    with ServerProcess(models.parent / "data", models, "--grpc-port", "0") as running:
        yield running


def by_label(predictions: list[list[dict[str, Any]]]) -> Scores:
    return [{prediction["label"]: prediction["score"] for prediction in row} for row in predictions]


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> Any:
    status, answer = server.call("POST", path, body)
    assert status == 200, answer
    return answer


def tensor(rows: list[list[float]] = ROWS, **parameters: Any) -> dict[str, Any]:
    data = {"name": "X", "shape": [len(rows), 4], "datatype": "FP32", "data": rows}
    return {**data, "parameters": parameters}


def v2_json(server: ServerProcess) -> Scores:
    body = {"inputs": [tensor(action="predict_proba")]}
    (output,) = post(server, "/v2/models/irises/infer", body)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("predictions", "BYTES", [3])
    assert output["parameters"]["inference_id"].count(",") == 2
    return by_label(output["data"])


def v2_binary(server: ServerProcess) -> Scores:
    raw = np.float32(ROWS).tobytes()
    given = {"name": "X", "shape": [3, 4], "datatype": "FP32"}
    given["parameters"] = {"binary_data_size": len(raw), "action": "predict_proba"}
    text = json.dumps({"inputs": [given]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, _, answer = server.request("POST", "/v2/models/irises/infer", text + raw, headers)
    assert status == 200, answer
    return by_label(json.loads(answer)["outputs"][0]["data"])


def over_grpc(server: ServerProcess) -> Scores:
    request = message_class("ModelInferRequest")(model_name="irises")
    request.inputs.add(name="X", datatype="FP32", shape=[3, 4])
    request.raw_input_contents.append(np.float32(ROWS).tobytes())
    request.parameters["action"].string_param = "predict_proba"
    request.outputs.add(name="predictions")
    with grpc.insecure_channel(server.grpc) as channel:
        response = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_class("ModelInferResponse").FromString,
        )(request, timeout=60)
    raw, texts = response.raw_output_contents[0], []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        texts.append(raw[4:end])
        raw = raw[end:]
    return by_label([json.loads(text) for text in texts])


def v1_rows(server: ServerProcess) -> Scores:
    body = {"instances": ROWS, "parameters": {"action": "predict_proba"}}
    return by_label(post(server, "/v1/models/irises:predict", body)["predictions"])


def v1_columns(server: ServerProcess) -> Scores:
    body = {"inputs": {"X": ROWS}, "parameters": {"action": "predict_proba"}}
    return by_label(post(server, "/v1/models/irises:predict", body)["outputs"])


def v1_classify(server: ServerProcess) -> Scores:
    body = {"examples": [{"X": row} for row in ROWS]}
    results = post(server, "/v1/models/irises:classify", body)["results"]
    assert [[label for label, _ in row] for row in results] == [list(IRISES)] * 3
    return [dict(row) for row in results]


@pytest.mark.parametrize("way", [v2_json, v2_binary, over_grpc, v1_rows, v1_columns, v1_classify])
def test_every_protocol_answers_the_scores_of_each_row(server, way: Callable[..., Scores]):
    for scores, expected in zip(way(server), EXPECTED.tolist(), strict=True):
        assert scores == pytest.approx(dict(zip(IRISES, expected, strict=True)), abs=1e-6)


def test_a_client_is_told_the_inputs_of_the_graph(server):
    _, metadata = server.call("GET", "/v2/models/irises")
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 4]}]
    assert metadata["outputs"] == [{"name": "predictions", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["properties"]["task"] == "IMAGE_CLASSIFICATION"
    _, signatures = server.call("GET", "/v1/models/irises/metadata")
    signature = signatures["metadata"]["signature_def"]["signature_def"]
    assert set(signature) == {"serving_default", "tensorflow/serving/classify"}
    status, answer = server.call("POST", "/infer", {"inputs": [{"b64": "AA=="}]})
    assert status == 400, answer


def test_each_row_is_an_inference_that_is_found_by_its_label_and_evaluated(server):
    inputs = [tensor([*ROWS, ROWS[0]], metadata={"batch": "evaluated"})]
    answer = post(server, "/v2/models/irises/infer", {"id": "rows", "inputs": inputs})
    ids = answer["outputs"][0]["parameters"]["inference_id"].split(",")
    records = server.query({"request_id": "rows"}, order="ts")
    assert [record["id"] for record in records] == ids
    assert [record["image_no"] for record in records] == [0, 1, 2, 3]
    assert {record["task"] for record in records} == {"IMAGE_CLASSIFICATION"}
    assert {record["input"]["name"] for record in records} == {"X"}
    labelled = server.query(
        {"and": [{"request_id": "rows"}, {"label": {"name": "setosa", "score": {"ge": 0.5}}}]}
    )
    assert {record["id"] for record in labelled} == {ids[0], ids[3]}
    truths = [*IRISES, "virginica"]  # the last row is answered wrongly
    for inference_id, truth in zip(ids, truths, strict=True):
        path = f"/api/inferences/{inference_id}/ground-truth"
        status, stated = server.call("PUT", path, {"annotations": [{"label": truth}]})
        assert status == 200, stated
    where = {"meta.batch": "evaluated"}
    status, job = server.call("POST", "/api/evaluations", {"model": "irises", "where": where})
    assert status == 202, job
    assert server.ended(job["id"])["state"] == "succeeded"
    _, report = server.call("GET", f"/api/reports/{job['id']}")
    accuracy = next(metric for metric in report["metrics"] if metric["type"] == "Accuracy")
    assert (report["data"]["current"]["n"], accuracy["value"]) == (4, 0.75)
    finished = quadriga(
        "evaluate", "--model", "irises", "--where", "meta.batch=evaluated",
        "--data", server.data, "--json", "--resamples", 0,
    )  # fmt: skip
    by_command = json.loads(finished.stdout)
    accuracy = next(metric for metric in by_command["metrics"] if metric["type"] == "Accuracy")
    assert (by_command["data"]["current"]["n"], accuracy["value"]) == (4, 0.75)


def test_each_row_is_kept_with_the_names_of_its_features(server):
    body = {"id": "kept", "inputs": [tensor()]}
    answer = post(server, "/v2/models/kept/infer", body)
    ids = answer["outputs"][0]["parameters"]["inference_id"].split(",")
    for inference_id, row in zip(ids, ROWS, strict=True):
        status, headers, data = server.request("GET", f"/api/inferences/{inference_id}/input")
        assert status == 200
        length = int(headers["inference-header-content-length"])
        described = json.loads(data[:length])
        assert (described["rows"], described["features"]) == (1, ["a", "b", "c", "d"])
        assert np.frombuffer(data[length:], "<f4").tolist() == row
        again = {"Inference-Header-Content-Length": str(length)}
        status, _, resent = server.request("POST", "/v2/models/kept/infer", data, again)
        assert status == 200
        (predictions,) = json.loads(resent)["outputs"][0]["data"]
        assert predictions == answer["outputs"][0]["data"][ids.index(inference_id)]


def test_features_that_model_toml_names_are_those_of_examples(server):
    examples = [dict(zip("abcd", row, strict=True)) for row in ROWS]
    results = post(server, "/v1/models/kept:classify", {"examples": examples})["results"]
    for row, expected in zip(results, EXPECTED.tolist(), strict=True):
        assert dict(row) == pytest.approx(dict(zip(IRISES, expected, strict=True)), abs=1e-6)


def test_drift_of_a_feature_is_named(server):
    draw = np.random.default_rng(7)
    for window, shift in (("before", 0.0), ("after", 3.0)):
        rows = draw.normal(size=(200, 4))
        rows[:, 1] += shift
        inputs = [tensor(rows.tolist(), metadata={"window": window})]
        post(server, "/v2/models/kept/infer", {"inputs": inputs})
    parameters = {
        "model": "kept",
        "baseline": {"where": {"meta.window": "before"}},
        "where": {"meta.window": "after"},
        "signals": ["input.a", "input.b", "input.c", "input.d"],
    }
    status, job = server.call("POST", "/api/drift", parameters)
    assert status == 202, job
    ended = server.ended(job["id"])
    assert ended["state"] == "succeeded", ended
    _, report = server.call("GET", f"/api/reports/{job['id']}")
    alarms = [signal["name"] for signal in report["signals"] if signal["alarm"]]
    assert alarms == ["input.b"]
    assert server.request("GET", f"/api/reports/{job['id']}/page")[0] == 200


def test_rows_are_explained_under_v1(server):
    answer = post(server, "/v1/models/irises:explain", {"instances": ROWS})
    assert [row[0]["label"] for row in answer["predictions"]] == list(IRISES)
    assert [len(explanation["saliency"]) for explanation in answer["explanations"]] == [4, 4, 4]
    assert answer["explanations"][0]["features"] == ["X[0]", "X[1]", "X[2]", "X[3]"]
    status, refused = server.call("POST", "/v1/models/irises:explain", {"instances": ROWS[:1]})
    assert (status, "2 rows or more" in refused["error"]) == (400, True)
