"""TF Serving and KServe V1 as their pages show them, and images that are answered as V2 answers them."""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.onnx_models import half_plus, several
from tests.server_process import IMAGES, ROOT, ServerProcess, image_input

LINES_OF_DETECTION = (IMAGES / "detection" / "annotations.jsonl").read_text().splitlines()
DETECTION = [json.loads(line) for line in LINES_OF_DETECTION]


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> Iterator[ServerProcess]:
    """Serve TF Serving's example models."""
    models: Path = tmp_path_factory.mktemp("halves") / "models"
    half_plus(models / "saved_model_half_plus_three" / "123" / "model.onnx", 3, ["n"])
    half_plus(models / "saved_model_half_plus_two" / "1" / "model.onnx", 2, ["n", "k"])
    several(models / "several" / "model.onnx")
    toml = models / "saved_model_half_plus_three" / "123" / "model.toml"
    toml.write_text('[runtime]\nversion_labels = ["stable"]\n')
    with ServerProcess(models.parent / "data", models) as server:
        yield server


def curl(server: ServerProcess, line: str):
    """Run a line of a page against a server: status and answer."""
    command = re.sub(r"http://[\w.]+:\d+", server.host, line)
    done = subprocess.run(
        ["bash", "-ec", f"{command} -s -w '\\n%{{http_code}}'"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


def base64_text(image: bytes) -> str:
    return base64.b64encode(image).decode()


LINES = [
    (
        "curl http://localhost:8501/v1/models/saved_model_half_plus_three",
        200,
        {
            "name": "saved_model_half_plus_three",
            "ready": True,
            "model_version_status": [
                {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
            ],
        },
    ),
    (
        """curl -d '{"instances": [1.0,2.0,5.0]}' -X POST http://localhost:8501/v1/models/saved_model_half_plus_three:predict""",
        200,
        {"predictions": [3.5, 4.0, 5.5]},
    ),
    (
        """curl -d '{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]}' -X POST http://localhost:8501/v1/models/saved_model_half_plus_three:regress""",
        200,
        {"results": [3.5, 4.0]},
    ),
    (
        """curl -d '{"instances": [1.0,5.0]}' -X POST http://localhost:8501/v1/models/half:predict""",
        404,
        {"error": "Servable not found for request: Latest(half)"},
    ),
    (
        """curl -d '{"signature_name":"serving_default","inputs":[3.0,4.0]}' http://localhost:8501/V1/models/saved_model_half_plus_three/labels/stable:Predict""",
        200,
        {"predictions": [4.5, 5.0], "outputs": [4.5, 5.0]},
    ),
    (
        """curl -d '{"instances": [[1.0,2.0],[3.0,4.0]]}' -X POST http://localhost:8501/v1/models/saved_model_half_plus_two:predict""",
        200,
        {"predictions": [[2.5, 3.0], [3.5, 4.0]]},
    ),
    (
        """curl -d '{"instances": [{"tag_bytes": {"b64": "YQ=="}, "signal": [1, 2], "flag": true}]}' http://localhost:8501/v1/models/several:predict""",
        200,
        {"predictions": [{"same_tag_bytes": {"b64": "YQ=="}, "same_signal": [1, 2], "same_flag": True}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LINES)))
def test_lines_of_the_pages(halves: ServerProcess, number):
    line, status, expected = LINES[number]
    assert curl(halves, line) == (status, expected)


def test_numbers_on_the_wire(halves: ServerProcess):
    path = "/v1/models/saved_model_half_plus_three:predict"
    status, headers, body = halves.request(
        "POST", path, '{"instances": [NaN, Infinity, -1e60, 17999994, 0.5]} trailing'
    )
    assert (status, headers["content-type"]) == (200, "application/json")
    assert body == b'{"predictions":[NaN,Infinity,-Infinity,9e+06,3.25]}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("several", {"instances": [{"tag_bytes": {"b64": "/w=="}, "signal": [1, 2], "flag": True}]}),
        ("several", {"inputs": {"tag_bytes": [], "signal": [[1]], "flag": []}}),
        ("saved_model_half_plus_two", {"instances": [1.0]}),
        ("saved_model_half_plus_two", {"inputs": 1.0}),
    ],
)  # fmt: skip
def test_what_the_graph_does_not_take_is_refused(halves: ServerProcess, path, body):
    status, answer = halves.call("POST", f"/v1/models/{path}:predict", body)
    assert status in (200, 400), answer


def test_tensors_are_stored_and_not_explained(halves: ServerProcess):
    path = "/v1/models/saved_model_half_plus_three"
    status, headers, _ = halves.request("POST", f"{path}:predict", '{"instances": [1.0]}')
    status, answer = halves.call("POST", f"{path}:explain", {"instances": [1.0]})
    assert status == 501
    assert "got TENSOR" in answer["error"]
    stored = [record["id"] for record in halves.query({})]
    assert headers["quadriga-inference-ids"] in stored


@pytest.mark.parametrize("model", ["shapes-detector", "shapes-classifier", "shapes-segmenter"])
def test_images_are_answered_as_by_v2(server: ServerProcess, photo, shape, model):
    images, parameters = [photo, shape[0]], {"metadata": {"site": "v1"}}
    inputs = [image_input(image, **parameters) for image in images]
    _, expected = server.call("POST", f"/v2/models/{model}/infer", {"inputs": inputs})
    expected_predictions = [output["data"][0] for output in expected["outputs"]]
    texts = [base64_text(image) for image in images]
    for instances in (texts, [{"b64": text} for text in texts]):
        body = json.dumps({"instances": instances, "parameters": parameters})
        status, headers, answer = server.request("POST", f"/v1/models/{model}:predict", body)
        assert status == 200
        assert json.loads(answer) == {"predictions": expected_predictions}
        ids = headers["quadriga-inference-ids"].split(",")
        records = server.query({"meta.site": "v1"})
        assert set(ids) < {record["id"] for record in records}
    _, answer = server.call("POST", f"/v1/models/{model}:predict", {"inputs": {"image": texts}})
    assert answer == {"outputs": expected_predictions}


def test_an_instance_has_parameters_of_its_own(server: ServerProcess, photo):
    text = base64_text(photo)
    instances = [text, {"image_bytes": {"b64": text}, "parameters": {"score_threshold": 1.0}}]
    _, answer = server.call("POST", "/v1/models/shapes-detector:predict", {"instances": instances})
    first, second = answer["predictions"]
    assert first
    assert second == []
    body = {"instances": [text], "parameters": {"score_threshold": 7}}
    status, answer = server.call("POST", "/v1/models/shapes-detector:predict", body)
    assert status == 400
    assert "score_threshold" in answer["error"]


def test_prompts(server: ServerProcess):
    image = base64_text((IMAGES / "image-text" / "scene_01.jpg").read_bytes())
    body = {"instances": [image], "parameters": {"prompts": ["How many shapes are there?"]}}
    status, answer = server.call("POST", "/v1/models/shapes-image-text:predict", body)
    assert status == 200
    ((answered,),) = answer["predictions"]
    assert answered == {"prompt": "How many shapes are there?", "answer": "2"}


def test_classes_come_in_the_model_s_order(server: ServerProcess, shape):
    image, label = shape
    body = {"examples": [{"image/encoded": {"b64": base64_text(image)}}]}
    status, answer = server.call("POST", "/v1/models/shapes-classifier:classify", body)
    assert status == 200
    (scores,) = answer["results"]
    labels = (ROOT / "sample_models" / "shapes-classifier" / "labels.txt").read_text().split()
    assert [name for name, _ in scores] == labels
    assert max(scores, key=lambda pair: pair[1])[0] == label


def overlaps(box, cell) -> bool:
    return (
        box["xmin"] < cell[1] and box["xmax"] > cell[0] and box["ymin"] < cell[3] and box["ymax"] > cell[2]
    )  # fmt: skip


@pytest.mark.parametrize("number", [0, 3, 7])
@pytest.mark.parametrize("target", [0, 1])
def test_the_box_explained_is_where_the_map_says(server: ServerProcess, number, target):
    from quadriga.tasks.image import decode  # noqa: PLC0415 - the size alone

    data = (IMAGES / "detection" / DETECTION[number]["path"]).read_bytes()
    image = decode(data)
    parameters = {"target": target, "metadata": {"explained": f"{number} {target}"}}
    body = {"instances": [base64_text(data)], "parameters": parameters}
    status, answer = server.call("POST", "/v1/models/shapes-detector:explain", body)
    assert status == 200, answer
    (explanation,) = answer["explanations"]
    assert (explanation["method"], explanation["grid"]) == ("occlusion", [7, 7])
    assert explanation["prediction"] == answer["predictions"][0][target]
    drops = np.array(explanation["saliency"])
    assert drops.max() > 0.1
    row, column = np.unravel_index(drops.argmax(), drops.shape)
    width, height = image.width / 7, image.height / 7
    cell = (column * width, (column + 1) * width, row * height, (row + 1) * height)
    assert overlaps(explanation["prediction"], cell)
    assert len(server.query({"meta.explained": f"{number} {target}"})) == 1


@pytest.mark.parametrize(("left", "top"), [(12, 12), (150, 20), (80, 150)])
def test_the_class_explained_is_where_the_map_says(server: ServerProcess, left, top):
    import cv2  # noqa: PLC0415 - draws the scene

    scene = np.full((240, 240, 3), 60, np.uint8)
    cv2.rectangle(scene, (left, top), (left + 75, top + 75), (30, 200, 40), -1)
    encoded = cv2.imencode(".png", scene)[1].tobytes()
    body = {"instances": [base64_text(encoded)], "parameters": {"grid": 6}}
    status, answer = server.call("POST", "/v1/models/shapes-classifier:explain", body)
    assert status == 200, answer
    (explanation,) = answer["explanations"]
    assert explanation["prediction"] == answer["predictions"][0][0]
    drops = np.array(explanation["saliency"])
    assert drops.shape == (6, 6)
    row, column = np.unravel_index(drops.argmax(), drops.shape)
    box = {"xmin": left, "ymin": top, "xmax": left + 75, "ymax": top + 75}
    assert overlaps(box, (column * 40, column * 40 + 40, row * 40, row * 40 + 40))


NOT_EXPLAINED = [
    ("shapes-segmenter", {}, 501, "got IMAGE_SEGMENTATION"),
    ("shapes-detector", {"grid": 0}, 400, "expected parameters.grid"),
    ("shapes-detector", {"grid": 33}, 400, "expected parameters.grid"),
    ("shapes-detector", {"target": 99}, 400, "expected parameters.target to be below"),
    ("shapes-detector", {"target": -1}, 400, "expected parameters.target"),
]


@pytest.mark.parametrize("number", range(len(NOT_EXPLAINED)))
def test_what_is_not_explained(server: ServerProcess, photo, number):
    model, parameters, status, message = NOT_EXPLAINED[number]
    body = {"instances": [base64_text(photo)], "parameters": parameters}
    actual_status, answer = server.call("POST", f"/v1/models/{model}:explain", body)
    assert actual_status == status
    assert message in answer["error"]


def test_explanations_are_bounded_and_nothing_has_none(server: ServerProcess, photo):
    text = base64_text(photo)
    path = "/v1/models/shapes-detector:explain"
    body = {"instances": [text] * 5, "parameters": {"grid": 32}}
    status, answer = server.call("POST", path, body)
    assert status == 400
    assert "at most 5000 runs" in answer["error"]
    body = {"instances": [text], "parameters": {"score_threshold": 1.0}}
    _, answer = server.call("POST", path, body)
    assert answer["predictions"] == [[]]
    (explanation,) = answer["explanations"]
    assert (explanation["prediction"], explanation["saliency"]) == (None, None)


def test_events_of_both_protocols(server: ServerProcess, photo):
    text = base64_text(photo)
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/a", "ce-type": "frame"}
    for path, body in (
        ("/v1/models/shapes-detector:predict", {"instances": [text]}),
        ("/v2/models/shapes-detector/infer", {"id": "x", "inputs": [image_input(photo)]}),
    ):
        _, _, plain = server.request("POST", path, json.dumps(body))
        status, received, answer = server.request("POST", path, json.dumps(body), headers)
        assert status == 200
        assert received["ce-source"] == "io.kserve.inference.shapes-detector"
        assert without_ids(answer) == without_ids(plain)
        event = {"specversion": "1.0", "id": "1", "source": "/a", "type": "frame", "data": body}
        named = {"Content-Type": "application/cloudevents+json"}
        status, received, answer = server.request("POST", path, json.dumps(event), named)
        assert received["content-type"] == named["Content-Type"]
        assert without_ids(json.dumps(json.loads(answer)["data"])) == without_ids(plain)


def without_ids(answer: bytes | str):
    document = json.loads(answer)
    for output in document.get("outputs", []):
        output["parameters"].pop("inference_id")
    return document


def test_an_image_model_without_images_is_refused(server: ServerProcess):
    for body in ({"inputs": []}, {"inputs": {"image": []}}, {"instances": [{}]}):
        status, answer = server.call("POST", "/v1/models/shapes-detector:predict", body)
        assert status == 400, answer


def test_the_page_s_lines_run(server: ServerProcess):
    page = (
        (ROOT / "docs" / "protocols-reference.md")
        .read_text()
        .partition("\n## Under /v1")[2]
        .partition("\n## ")[0]
    )
    answers = []
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        done = subprocess.run(
            ["bash", "-ec", block.replace("localhost:8080", server.host)],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        answers.append(json.loads(done.stdout))
    (promised,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    predicted, explained, event = answers
    (documented,), (predicted_boxes,) = (
        json.loads(promised)["predictions"],
        predicted["predictions"],
    )
    for box, expected in zip(predicted_boxes, documented, strict=True):
        assert box.pop("label") == expected.pop("label")
        assert box == pytest.approx(expected, abs=0.06)
    assert np.array(explained["explanations"][0]["saliency"]).shape == (4, 4)
    assert event["data"]["predictions"][0]


def test_variables_of_kserve_reach_the_wire(tmp_path):
    models = tmp_path / "models"
    half_plus(models / "half_plus_three" / "model.onnx", 3, ["n"])
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/a", "ce-type": "b"}
    server = ServerProcess(tmp_path / "data", models)
    server.environment |= {"CE_TYPE": "seen", "CE_SOURCE": "/north", "CE_MERGE": "true"}
    with server:
        path = "/v1/models/half_plus_three:predict"
        headers = {**event, "ce-subject": "x"}
        _, received, body = server.request("POST", path, '{"instances": [1.0]}', headers)
        assert body == b'{"predictions":[3.5]}'
        assert (received["ce-type"], received["ce-source"]) == ("seen", "/north")
        assert received["ce-subject"] == "x"
        _, document = server.call("GET", "/schema/openapi.json")
    described = [path for path in document["paths"] if path.startswith("/v1")]
    assert "/v1/models/{name}/labels/{label}:predict" in described
    assert not [path for path in described if "..." in path]


def test_what_a_limit_left_out_is_said_in_every_protocol(server) -> None:
    image = (IMAGES / "segmentation" / "scene_02.jpg").read_bytes()
    whole = server.infer("shapes-segmenter", image, regions="class")
    assert "truncated" not in whole["parameters"]
    cut = {"regions": "class", "max_segments": 1}
    body = json.dumps({"inputs": [image_input(image, **cut)]})
    _, headers, content = server.request("POST", "/v2/models/shapes-segmenter/infer", body)
    (output,) = json.loads(content)["outputs"]
    assert len(output["data"][0]) == 1
    assert output["parameters"]["truncated"] is True
    assert output["parameters"]["total_segments"] == len(whole["data"][0]) > 1
    assert headers["quadriga-truncated"] == str(len(whole["data"][0]))
    body = json.dumps({"instances": [{"b64": base64_text(image)}], "parameters": cut})
    _, headers, _ = server.request("POST", "/v1/models/shapes-segmenter:predict", body)
    assert headers["quadriga-truncated"] == str(len(whole["data"][0]))
