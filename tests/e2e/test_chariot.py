"""chariot-v2-kserve as its page says it, and each way in which a public engine fails at it."""

import base64
import json
import time

import pytest

from tests.pages import blocks
from tests.server_process import ServerProcess, image_input

DETECTOR = "/v2/models/m-shapes-detector/infer/"
CLASSIFIER = "/v2/models/m-shapes-classifier/infer/"

GIF_OF_ONE_PIXEL = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw==")

EXTENDED = json.dumps(
    {
        "standard_metadata": {},
        "extended_metadata": [
            {"key": "a", "type": "int", "value": "1"},
            {"key": "score_threshold", "type": "float", "value": "0.55"},
            {"key": "site", "type": "str", "value": "harbour"},
            {"key": "location", "type": "dict", "value": '{"building": "A", "floor": 2}'},
        ],
    }
)


def overlap(truth, prediction):
    """Intersection over union of two boxes."""
    width = min(truth["xmax"], prediction["xmax"]) - max(truth["xmin"], prediction["xmin"])
    height = min(truth["ymax"], prediction["ymax"]) - max(truth["ymin"], prediction["ymin"])
    common = max(0, width) * max(0, height)
    areas = [(b["xmax"] - b["xmin"]) * (b["ymax"] - b["ymin"]) for b in (truth, prediction)]
    return common / (sum(areas) - common)


def test_the_page_s_request_has_the_page_s_answer(server: ServerProcess, photo):
    request, promised = (block.text for block in blocks("docs/protocols.md")[:2])
    body = json.loads(request.replace("<image, base64>", base64.b64encode(photo).decode()))
    status, answer = server.call("POST", "/v2/models/shapes-detector/infer", body)
    assert status == 200, answer
    expected = json.loads(promised)
    assert answer.keys() == expected.keys()
    (output,), (documented,) = answer["outputs"], expected["outputs"]
    assert output.keys() == documented.keys()
    assert output["parameters"].keys() == documented["parameters"].keys()
    assert output["data"][0][0].keys() == documented["data"][0][0].keys()
    assert (output["name"], output["shape"]) == (documented["name"], documented["shape"])


def test_the_page_s_own_classification_request(server: ServerProcess, shape):
    image, label = shape
    body = {
        "inputs": [
            {
                "name": "input-image-0",
                "shape": [1],
                "datatype": "BYTES",
                "data": [base64.b64encode(image).decode()],
                "parameters": {"action": "predict_proba"},
            }
        ]
    }
    status, answer = server.call("POST", CLASSIFIER, body)
    assert status == 200
    assert answer["model_name"] == "shapes-classifier"
    assert answer["model_version"] == "1"
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("input-image-0", [1], "BYTES")
    assert output["parameters"]["action"] == "predict_proba"
    (scores,) = output["data"]
    assert scores[0]["label"] == label
    assert {tuple(score) for score in scores} == {("label", "score")}
    assert sorted(s["label"] for s in scores) == ["circle", "cross", "square", "star", "triangle"]
    assert sum(s["score"] for s in scores) == pytest.approx(1, abs=1e-5)
    assert [s["score"] for s in scores] == sorted((s["score"] for s in scores), reverse=True)


def test_predict_answers_the_best_and_top_k_that_many(server: ServerProcess, shape):
    image, label = shape
    for parameters, count in (({}, 1), ({"action": "predict"}, 1), ({"top_k": 3}, 3)):
        status, answer = server.call(
            "POST", CLASSIFIER, {"inputs": [image_input(image, **parameters)]}
        )
        assert status == 200
        assert len(answer["outputs"][0]["data"][0]) == count
        assert answer["outputs"][0]["data"][0][0]["label"] == label


def test_boxes_are_in_pixels_of_the_image(server: ServerProcess, photo, photo_truth):
    status, answer = server.call(
        "POST", DETECTOR, {"inputs": [image_input(photo, action="detect")]}
    )
    assert status == 200
    (detections,) = answer["outputs"][0]["data"]
    assert [list(box) for box in detections] == [
        ["label", "score", "xmin", "ymin", "xmax", "ymax"]
    ] * len(detections)
    for truth in photo_truth:
        same = [box for box in detections if box["label"] == truth["class_label"]]
        assert max(overlap(truth["bbox"], box) for box in same) > 0.8


def test_several_inputs_answer_one_output_each_under_its_name(server: ServerProcess, photo, shape):
    inputs = [image_input(photo, "first"), image_input(shape[0], "second", score_threshold=1.0)]
    status, answer = server.call("POST", DETECTOR, {"id": "request-7", "inputs": inputs})
    assert status == 200
    assert answer["id"] == "request-7"
    assert [output["name"] for output in answer["outputs"]] == ["first", "second"]
    assert len(answer["outputs"][0]["data"][0]) > 0
    assert answer["outputs"][1]["data"] == [[]]


@pytest.mark.parametrize("shape_of_two", [[2], [2, 1], [-1]])
def test_two_images_in_one_input_answer_two_lists(
    server: ServerProcess, photo, shape, shape_of_two
):
    both = image_input(photo)
    both["data"].append(base64.b64encode(shape[0]).decode())
    both["shape"] = shape_of_two
    alone = [
        server.call("POST", DETECTOR, {"inputs": [image_input(image)]})[1]["outputs"][0]["data"][0]
        for image in (photo, shape[0])
    ]
    status, answer = server.call("POST", DETECTOR, {"inputs": [both]})
    assert status == 200
    (output,) = answer["outputs"]
    assert output["shape"] == [2]
    assert len(output["parameters"]["inference_id"].split(",")) == 2
    for mine, expected in zip(output["data"], alone, strict=True):
        assert [box["label"] for box in mine] == [box["label"] for box in expected]
        for predictions, expected_predictions in zip(mine, expected, strict=True):
            assert predictions["xmin"] == pytest.approx(expected_predictions["xmin"], abs=1e-2)


@pytest.mark.parametrize(
    "metadata",
    [
        EXTENDED,
        json.dumps(json.loads(EXTENDED)["extended_metadata"]),
        json.loads(EXTENDED),
        {
            "a": 1,
            "score_threshold": 0.55,
            "site": "harbour",
            "location": {"building": "A", "floor": 2},
        },
    ],
    ids=["object in a text", "list in a text", "object", "plain object"],
)
def test_metadata_is_echoed_stored_typed_and_found(server: ServerProcess, photo, metadata):
    body = {"inputs": [image_input(photo, action="predict", metadata=metadata)]}
    status, headers, raw = server.request("POST", DETECTOR, json.dumps(body))
    answer = json.loads(raw)
    assert status == 200
    parameters = answer["outputs"][0]["parameters"]
    assert parameters["metadata"] == metadata
    assert parameters["action"] == "predict"
    inference_id = parameters["inference_id"]
    assert headers["quadriga-inference-ids"] == inference_id
    filter_ = {
        "id": inference_id,
        "meta.a": {"lt": 2},
        "meta.location.floor": 2,
        "meta.site": "harbour",
    }
    (record,) = server.query(filter_)
    assert record["metadata"] == {
        "a": 1,
        "score_threshold": 0.55,
        "site": "harbour",
        "location": {"building": "A", "floor": 2},
    }
    assert record["predictions"] == answer["outputs"][0]["data"][0]
    assert server.query({"id": inference_id, "meta.a": "1"}) == []


def test_a_record_is_there_the_moment_it_is_acknowledged(server: ServerProcess, photo):
    for _ in range(20):
        _, answer = server.call("POST", DETECTOR, {"inputs": [image_input(photo)]})
        inference_id = answer["outputs"][0]["parameters"]["inference_id"]
        status, record = server.call("GET", f"/api/inferences/{inference_id}")
        assert status == 200
        assert record["id"] == inference_id
    assert record["model"]["name"] == "shapes-detector"
    assert len(record["model"]["sha256"]) == 64
    assert record["task"] == "OBJECT_DETECTION"
    assert record["input"]["name"] == "input-image-0"
    assert record["input"]["mime"] == "image/jpeg"
    assert (record["input"]["width"], record["input"]["height"]) == (640, 480)
    assert record["ground_truth"] is None
    assert record["latency_ms"] > 0
    assert (
        abs(
            time.time() - time.mktime(time.strptime(record["created_at"][:19], "%Y-%m-%dT%H:%M:%S"))
        )
        < 86400
    )
    status, headers, image = server.request("GET", f"/api/inferences/{inference_id}/input")
    assert status == 200
    assert headers["content-type"] == "image/jpeg"
    assert image == photo


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/m-shapes-detector/infer/",
        "/v2/models/m-shapes-detector/infer",
        "/v2/models/shapes-detector/infer",
        "/v2/models/M-Shapes-Detector/infer",
        "/v2/models/shapes-detector/versions/1/infer",
        "/api/serve/serve-model-shapes-detector-pred/v2/models/m-shapes-detector/infer/",
        "/api/serve/serve-model-shapes-detector-pred/v2/models/m-shapes-detector/infer",
    ],
)
def test_every_path_answers_the_same_without_redirect(server: ServerProcess, photo, path):
    status, answer = server.call("POST", path, {"id": "x", "inputs": [image_input(photo)]})
    _, expected = server.call("POST", DETECTOR, {"id": "x", "inputs": [image_input(photo)]})
    assert status == 200
    assert answer["outputs"][0]["data"] == expected["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/ready", "ready"),
        ("/v2/health/live", "live"),
        ("/v2/health/ready/", "ready"),
        ("/v2/models/m-shapes-detector/ready", "ready"),
        ("/v2/models/shapes-detector", "platform"),
        ("/v2/", "extensions"),
        ("/v2/models", "models"),
        ("/api/serve/serve-model-shapes-detector-pred/ready", "ready"),
    ],
)
def test_health_and_metadata(server: ServerProcess, path, key):
    status, answer = server.call("GET", path)
    assert status == 200
    assert key in answer
    status, _, body = server.request("HEAD", path)
    assert (status, body) == (200, b"")


# What a public engine of this protocol does wrong, row by row.


@pytest.mark.parametrize(
    "image",
    [b"no image at all", b"", b"\x89PNG\r\n\x1a\n\x00\x00", bytes(range(256)) * 40],
    ids=["text", "empty", "start of a PNG", "octets"],
)
def test_what_is_no_image_is_refused_by_name(server: ServerProcess, image):
    status, answer = server.call("POST", DETECTOR, {"inputs": [image_input(image, "front-camera")]})
    assert status == 400
    assert "inputs[0]" in answer["error"]
    assert "front-camera" in answer["error"]


def test_bad_base64_is_refused(server: ServerProcess):
    status, answer = server.call("POST", DETECTOR, {"inputs": [image_input("!!!")]})
    assert status == 400
    assert "base64" in answer["error"]


def test_one_bad_of_two_inputs_is_named(server: ServerProcess, photo):
    inputs = [image_input(photo, "good"), image_input(b"bad", "bad")]
    status, answer = server.call("POST", DETECTOR, {"inputs": inputs})
    assert status == 400
    assert "inputs[1] ('bad')" in answer["error"]


def test_an_unknown_action_lists_what_is_allowed(server: ServerProcess, photo):
    status, answer = server.call(
        "POST", DETECTOR, {"inputs": [image_input(photo, action="segment")]}
    )
    assert status == 400
    for word in ("inputs[0]", "predict", "detect", "segment"):
        assert word in answer["error"]


def test_null_parameters_are_absent_ones(server: ServerProcess, photo):
    tensor = {**image_input(photo), "parameters": None}
    status, _ = server.call("POST", DETECTOR, {"inputs": [tensor], "parameters": None})
    assert status == 200


@pytest.mark.parametrize("threshold", [True, 7, -0.1, "0.5", [0.5]])
def test_a_threshold_out_of_range_is_refused(server: ServerProcess, photo, threshold):
    body = {"inputs": [image_input(photo, score_threshold=threshold)]}
    status, answer = server.call("POST", DETECTOR, body)
    assert status == 400
    assert "score_threshold" in answer["error"]


@pytest.mark.parametrize("content_type", [None, "raw"])
def test_a_number_beside_an_image_is_refused_with_its_place(
    server: ServerProcess, photo, content_type
):
    number = {"name": "score_threshold", "datatype": "FP64", "shape": [1], "data": [0.8],
              "parameters": {"content_type": content_type}}  # fmt: skip
    status, answer = server.call("POST", DETECTOR, {"inputs": [image_input(photo), number]})
    assert status == 400
    assert answer["error"].startswith(
        "inputs[1] ('score_threshold'): expected images in datatype BYTES, base64-encoded in JSON, got FP64; "
        "a number beside an image stands in parameters"
    )


@pytest.mark.parametrize("field", ["name", "shape", "datatype", "data"])
def test_a_missing_field_is_named(server: ServerProcess, photo, field):
    tensor = image_input(photo)
    del tensor[field]
    status, answer = server.call("POST", DETECTOR, {"inputs": [tensor]})
    assert status == 400
    assert field in answer["error"]
    assert "inputs[0]" in answer["error"]


def test_the_body_s_id_comes_before_the_header_s(server: ServerProcess, photo):
    body = {"inputs": [image_input(photo)]}
    for request, expected in ((body, "from-header"), ({**body, "id": "from-body"}, "from-body")):
        _, _, answer = server.request(
            "POST", DETECTOR, json.dumps(request), {"X-Request-ID": "from-header"}
        )
        assert json.loads(answer)["id"] == expected


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_any_content_type_is_read(server: ServerProcess, photo, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    body = json.dumps({"inputs": [image_input(photo)]})
    assert server.request("POST", DETECTOR, body, headers)[0] == 200


def test_a_data_url_is_an_image_too(server: ServerProcess, photo):
    url = "data:image/jpeg;base64," + base64.b64encode(photo).decode()
    assert server.call("POST", DETECTOR, {"inputs": [image_input(url)]})[0] == 200


def test_base64_in_lines_is_read(server: ServerProcess, photo):
    lines = base64.encodebytes(photo).decode()
    assert server.call("POST", DETECTOR, {"inputs": [image_input(lines)]})[0] == 200


@pytest.mark.parametrize(("count", "in_header"), [(1, True), (150, True), (500, False)])
def test_ids_of_many_images_never_grow_the_headers_beyond_what_clients_take(
    server: ServerProcess, count, in_header
):
    image = base64.b64encode(GIF_OF_ONE_PIXEL).decode()
    tensor = {**image_input(image), "shape": [count], "data": [image] * count}
    status, headers, answer = server.request("POST", CLASSIFIER, json.dumps({"inputs": [tensor]}))
    assert status == 200
    ids = json.loads(answer)["outputs"][0]["parameters"]["inference_id"]
    assert len(ids.split(",")) == count
    assert headers.get("quadriga-inference-ids") == (ids if in_header else None)


def test_images_of_one_name_are_all_answered_where_outputs_are_asked_for(server, photo):
    body = {"inputs": [image_input(photo, "camera")] * 2, "outputs": [{"name": "camera"}]}
    status, answer = server.call("POST", DETECTOR, body)
    assert (status, [output["name"] for output in answer["outputs"]]) == (200, ["camera"] * 2)
