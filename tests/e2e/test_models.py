"""Models as folders, over the wire: tensors, states, and what each model keeps."""

import json
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.band_images import pages, png
from tests.onnx_models import (
    CLASSIFIER_TOML,
    answering,
    classifier,
    doubling,
    half_plus,
    save,
    value,
)
from tests.server_process import ServerProcess, image_input


def texts(path):
    return save(
        path,
        [helper.make_node("Identity", ["text"], ["same"])],
        [value("text", ["n"], TensorProto.STRING)],
        [value("same", ["n"], TensorProto.STRING)],
    )


CODES = [b"\xff\xfe\xfd", "é".encode(), b"\xff\0\xfd"]


def codes(path):
    """A model that answers the position of a string among `CODES`."""
    keys = {"keys_strings": CODES, "values_int64s": range(len(CODES)), "default_int64": -1}
    node = helper.make_node("LabelEncoder", ["code"], ["position"], domain="ai.onnx.ml", **keys)
    inputs = [value("code", ["n"], TensorProto.STRING)]
    graph = helper.make_graph(
        [node], "codes", inputs, [value("position", ["n"], TensorProto.INT64)]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    path.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def external(path):
    """A model whose weights stand in a file beside it."""
    save(
        path,
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", [1024])],
        [value("y", [1024])],
        {"w": np.arange(1024, dtype=np.float32)},
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.onnx.data")
    assert (path.parent / "model.onnx.data").exists()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    doubling(root / "double" / "model.onnx")
    doubling(root / "fixed" / "1" / "model.onnx", batch=2)
    texts(root / "texts" / "model.onnx")
    codes(root / "codes" / "model.onnx")
    codes(root / "kept-codes" / "model.onnx")
    (root / "kept-codes" / "model.toml").write_text('[store]\ninputs = "all"\n')
    half_plus(root / "scalar" / "model.onnx", 2.0, [])
    external(root / "external" / "model.onnx")
    for name, batch, toml in (
        ("colours", "batch", ""),
        ("colours-by-four", 4, ""),
        ("private", 1, "[store]\nenabled = false\n"),
        ("imageless", 1, '[store]\ninputs = "none"\n'),
    ):
        classifier(root / name / "model.onnx", batch=batch)
        (root / name / "model.toml").write_text(CLASSIFIER_TOML + toml)
        (root / name / "labels.txt").write_text("red\ngreen\nblue\n")
    answering(
        root / "multispectral" / "model.onnx",
        {"output0": np.float32([[16], [16], [8], [8], [0.75]])},
        image=("images", ["batch", 10, 32, 32]),
        metadata={"task": "detect", "names": "{0: 'crop'}", "stride": "32", "channels": "10"},
    )
    (root / "broken").mkdir()
    (root / "broken" / "model.onnx").write_bytes(b"broken")
    (root / "training").mkdir()
    return root


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    data = tmp_path_factory.mktemp("models-server") / "data"
    with ServerProcess(data, models, "--no-strict-readiness") as running:
        yield running


def tensor(name="x", shape=(1, 3), datatype="FP32", data=(1, 2, 3)):
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": list(data)}


def plain(colour):
    """A PNG of one colour."""
    return cv2.imencode(".png", np.full((20, 30, 3), colour[::-1], np.uint8))[1].tobytes()


def test_tensors_go_in_and_out_by_the_names_of_the_graph(server):
    status, answer = server.call(
        "POST", "/v2/models/double/infer", {"id": "7", "inputs": [tensor()]}
    )
    assert status == 200
    (record,) = server.query({"request_id": "7"})
    output = {"name": "y", "shape": [1, 3], "datatype": "FP32", "data": [2, 4, 6]}
    parameters = {"inference_id": record["id"]}
    assert answer == {
        "model_name": "double",
        "model_version": "1",
        "id": "7",
        "outputs": [{**output, "parameters": parameters}],
    }
    assert record["task"] == "TENSOR"
    assert record["predictions"] == [output]


def test_a_graph_without_axes_takes_one_number(server):
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3.0]}
    status, answer = server.call("POST", "/v2/models/scalar/infer", {"inputs": [tensor]})
    (output,) = answer["outputs"]
    assert (status, output["shape"], output["data"]) == (200, [], [3.5])
    for shape, data in (([1, 1], [3.0]), ([2], [3.0, 4.0])):
        body = {"inputs": [{**tensor, "shape": shape, "data": data}]}
        assert server.call("POST", "/v2/models/scalar/infer", body)[0] == 400


def test_texts_and_external_weights(server):
    body = {"inputs": [tensor("text", [2], "BYTES", ["a", "ä"])]}
    assert server.call("POST", "/v2/models/texts/infer", body)[1]["outputs"][0]["data"] == [
        "a",
        "ä",
    ]
    body = {"inputs": [tensor("x", [1024], "FP32", [0] * 1024)]}
    status, answer = server.call("POST", "/v2/models/external/infer", body)
    assert (status, answer["outputs"][0]["data"]) == (200, list(range(1024)))


def test_a_page_for_each_band_is_answered_and_kept(server):
    bands = list(np.arange(10 * 24 * 32, dtype=np.uint16).reshape(10, 24, 32))
    body = {"id": "bands", "inputs": [image_input(pages(bands))]}
    status, answer = server.call("POST", "/v2/models/multispectral/infer", body)
    assert status == 200
    ((prediction,),) = answer["outputs"][0]["data"]
    assert (prediction["label"], prediction["score"]) == ("crop", 0.75)
    assert [prediction[edge] for edge in ("xmin", "ymin", "xmax", "ymax")] == [12, 8, 20, 16]
    (record,) = server.query({"request_id": "bands"})
    assert [prediction_["label"] for prediction_ in record["predictions"]] == ["crop"]
    body["inputs"] = [image_input(png(np.zeros((24, 32, 4), np.uint8)))]
    status, answer = server.call("POST", "/v2/models/multispectral/infer", body)
    assert status == 400
    assert "data[0]: expected an image of 10 bands, got one of 4" in json.dumps(answer)


@pytest.mark.parametrize(
    ("data", "shape", "parameters"),
    [
        (["a", "ä"], [2], None),
        (["a", "ä"], [2, 1], None),  # as MLServer's codecs send a list
        (["YQ==", "w6Q="], [2, 1], {"content_type": "base64"}),
        (["a", "ä"], [2], {"content_type": "str"}),
    ],
)
def test_texts_of_any_codec_come_back(server, data, shape, parameters):
    body = {"inputs": [{**tensor("text", shape, "BYTES", data), "parameters": parameters}]}
    status, answer = server.call("POST", "/v2/models/texts/infer", body)
    assert status == 200, answer
    (output,) = answer["outputs"]
    assert (output["data"], output["shape"]) == (["a", "ä"], [2])


BYTE_STRINGS = [
    ([{"b64": "//79"}], [0]),
    ([{"b64": "//79"}, "é", {"b64": "w6k="}, "none", ""], [0, 1, 1, -1, -1]),
    ([{"b64": "/wD9"}, {"b64": "//79"}], [2, 0]),  # of one length, so that a NUL is no end
]


@pytest.mark.parametrize(("data", "positions"), BYTE_STRINGS)
def test_strings_that_are_no_text_reach_the_graph(server, data, positions):
    body = {"inputs": [tensor("code", [len(data)], "BYTES", data)]}
    status, answer = server.call("POST", "/v2/models/codes/infer", body)
    assert status == 200, answer
    assert answer["outputs"][0]["data"] == positions
    status, answer = server.call("POST", "/v1/models/codes:predict", {"instances": data})
    assert (status, answer) == (200, {"predictions": positions})


@pytest.mark.parametrize(("data", "positions"), BYTE_STRINGS)
def test_strings_that_are_no_text_are_kept_and_can_be_sent_again(server, data, positions):
    body = {"inputs": [tensor("code", [len(data)], "BYTES", data)]}
    status, answer = server.call("POST", "/v2/models/kept-codes/infer", body)
    assert status == 200, answer
    inference_id = answer["outputs"][0]["parameters"]["inference_id"]
    _, headers, kept = server.request("GET", f"/api/inferences/{inference_id}/input")
    header = {"Inference-Header-Content-Length": headers["inference-header-content-length"]}
    status, _, resent = server.request("POST", "/v2/models/kept-codes/infer", kept, header)
    assert status == 200, resent
    assert json.loads(resent)["outputs"][0]["data"] == positions


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"b64": "/wD9"}, "a"], "input 'code': expected texts in UTF-8, or bytes without NUL or all"),
        ([{"b64": "/w=="}, "a" * 300_000, *["b"] * 1000], "each element as long as the longest, got 300000 x 1002"),
    ],
)  # fmt: skip
def test_strings_that_the_graph_could_not_tell_apart_are_refused(server, data, message):
    body = {"inputs": [tensor("code", [len(data)], "BYTES", data)]}
    status, answer = server.call("POST", "/v2/models/codes/infer", body)
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("data", "message"), [(["a"], "expected base64"), (["/w=="], "the texts it answers in UTF-8")]
)
def test_base64_that_is_none_is_refused(server, data, message):
    tensor_input = {**tensor("text", [1], "BYTES", data), "parameters": {"content_type": "base64"}}
    status, answer = server.call("POST", "/v2/models/texts/infer", {"inputs": [tensor_input]})
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "message"),
    [
        ("double", [tensor("z")], None, "inputs x"),
        ("double", [tensor(), tensor()], None, "twice"),
        ("double", [tensor(datatype="INT32")], None, "datatype FP32, got INT32"),
        ("double", [tensor(shape=[3])], None, "[-1, 3]"),
        ("double", [tensor(shape=[1, 4], data=[1, 2, 3, 4])], None, "[-1, 3]"),
        ("fixed", [tensor()], None, "[2, 3]"),
        ("double", [tensor(data=[1, 2, "x"])], None, "FP32"),
        ("double", [tensor()], [{"name": "z"}], "outputs among y, got z"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(server, model, inputs, outputs, message):
    body = {"inputs": inputs, "outputs": outputs}
    status, answer = server.call("POST", f"/v2/models/{model}/infer", body)
    assert status == 400
    assert message in answer["error"]


def test_metadata_of_models(server):
    _, answer = server.call("GET", "/v2/models/double")
    assert answer == {
        "name": "double",
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
        "properties": {"task": "TENSOR"},
    }
    colours = server.call("GET", "/v2/models/colours")[1]
    assert colours["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert colours["properties"].keys() == {"task", "graph_inputs", "graph_outputs"}
    (graph_input,) = json.loads(colours["properties"]["graph_inputs"])
    image = np.zeros([max(size, 1) for size in graph_input["shape"]], np.float32)
    raw = {
        **tensor(graph_input["name"], image.shape, graph_input["datatype"], image.ravel().tolist())
    }
    body = {"inputs": [raw], "parameters": {"content_type": "raw"}}
    status, answer = server.call("POST", "/v2/models/colours/infer", body)
    assert status == 200, answer
    names = [row["name"] for row in json.loads(colours["properties"]["graph_outputs"])]
    assert [output["name"] for output in answer["outputs"]] == names
    names = server.call("GET", "/v2/models")[1]["models"]
    assert "training" not in names
    assert {"double", "broken", "fixed"} <= set(names)


@pytest.mark.parametrize("model", ["colours", "colours-by-four"])
def test_many_images_answer_in_their_order_whatever_the_batch(server, model):
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
    names = [name for name in colours for _ in range(3)] + ["red"]
    inputs = [image_input(plain(colours[name]), f"{n}-{name}") for n, name in enumerate(names)]
    status, answer = server.call("POST", f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200
    assert [output["data"][0][0]["label"] for output in answer["outputs"]] == names


def test_a_failed_model_says_why_and_stops_no_other(server):
    status, answer = server.call("POST", "/v2/models/broken/infer", {"inputs": [tensor()]})
    assert status == 503
    assert "ONNX" in answer["error"]
    status, answer = server.call("GET", "/v2/models/broken/ready")
    assert (status, answer["ready"]) == (400, False)
    assert server.call("GET", "/v2/health/ready")[0] == 200  # readiness is not strict here


def test_a_failed_model_keeps_a_strict_server_unready(models, tmp_path):
    server = ServerProcess(tmp_path / "data", models).start(ready=False)
    try:
        server.wait_until(
            lambda: "loading" not in server.call("GET", "/v2/health/ready")[1]["error"]
        )
        status, answer = server.call("GET", "/v2/health/ready")
        assert status == 400
        assert "broken 1" in answer["error"]
        assert (answer["live"], answer["ready"], answer["status"]) == (True, False, "not ready")
        assert server.call("GET", "/ready") == (status, answer)
        assert server.call("POST", "/v2/models/double/infer", {"inputs": [tensor()]})[0] == 200
    finally:
        assert server.stop() == 0


def test_a_model_keeps_what_it_is_told_to(server):
    body = {"inputs": [image_input(plain((255, 0, 0)))]}
    _, headers, answer = server.request("POST", "/v2/models/private/infer", json.dumps(body))
    assert "quadriga-inference-ids" not in headers
    assert "parameters" not in json.loads(answer)["outputs"][0]
    assert server.query({"model": "private"}) == []
    _, answer = server.call("POST", "/v2/models/imageless/infer", body)
    inference_id = answer["outputs"][0]["parameters"]["inference_id"]
    _, record = server.call("GET", f"/api/inferences/{inference_id}")
    assert record["input"]["hash"].startswith("blake3:")
    status, answer = server.call("GET", f"/api/inferences/{inference_id}/input")
    assert status == 404
    assert "not stored" in answer["error"]


def test_nothing_to_serve_ends_the_server_with_its_reason(tmp_path):
    server = ServerProcess(tmp_path / "data", tmp_path)
    server.start(ready=False)
    assert server.process.wait(30) == 2
    server.process.stdout.close()
    assert "no model found in" in server.log.read_text()


def test_a_server_without_store_answers_and_keeps_nothing(models, tmp_path):
    data = tmp_path / "data"
    server = ServerProcess(data, models / "double", "--no-store").start()
    assert server.call("POST", "/v2/models/double/infer", {"inputs": [tensor()]})[0] == 200
    assert server.call("POST", "/api/inferences/query", {})[0] == 404
    assert server.stop() == 0
    assert not data.exists()


def test_more_requests_than_may_wait_are_refused_at_once(models, tmp_path):
    flags = ("--max-queue", "1", "--no-strict-readiness")
    with ServerProcess(tmp_path / "data", models / "colours", *flags) as server:
        big = image_input(plain((255, 0, 0)))
        body = json.dumps({"inputs": [big] * 200})

        def send(_):
            return server.request("POST", "/v2/models/colours/infer", body)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(24)))
        statuses = {status for status, _, _ in answers}
        assert statuses == {200, 503}
        refused = next(answer for answer in answers if answer[0] == 503)
        assert refused[1]["retry-after"] == "1"
        assert "waiting requests" in json.loads(refused[2])["error"]


def test_several_workers_share_the_port_and_the_store(models, tmp_path):
    with ServerProcess(tmp_path / "data", models / "double", "--workers", "2") as server:
        ids = []
        for number in range(40):
            _, headers, _ = server.request(
                "POST",
                "/v2/models/double/infer",
                json.dumps({"id": str(number), "inputs": [tensor()]}),
            )
            ids.append(headers["quadriga-inference-ids"])
        assert len(set(ids)) == 40
        assert {record["id"] for record in server.query({})} == set(ids)
        assert [record["id"] for record in server.query({}, order="ts")] == sorted(ids, key=int)
