"""Models that are served elsewhere: their inferences logged, searched, evaluated, watched, and none lost or stored twice."""

import base64
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from quadriga.tasks.image import decode
from quadriga.tasks.resize import preprocess
from quadriga.tasks.specification import InputSpec
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

SCENES = sorted((IMAGES / "detection").glob("*.jpg"))
LABELS = (SAMPLE_MODELS / "shapes-detector" / "labels.txt").read_text().split()
DESCRIPTION = {
    "task": "detection",
    "labels": LABELS,
    "input": {"size": [160, 160], "resize": "letterbox"},
    "output": {"decoder": "ultralytics"},
    "defaults": {"score_threshold": 0.25},
}
SPEC = InputSpec(name="images", size_wh=(160, 160), resize="letterbox")
EVENT = "org.kubeflow.serving.inference."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Serve the detector by two workers."""
    data = tmp_path_factory.mktemp("elsewhere") / "data"
    quick = {"engine.external.event_pairs": {"ALONE_S": 2}}
    flags = ("--workers", "2")
    with ServerProcess(data, SAMPLE_MODELS / "shapes-detector", *flags, constants=quick) as running:
        yield running


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def tensor_of(image: bytes) -> np.ndarray:
    """Return what a client of Triton sends for an image, float32 (3, 160, 160)."""
    return preprocess(decode(image), SPEC)[0]


def triton(server: ServerProcess, tensor: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the request and the response of a server of tensors, as Triton has them in JSON."""
    request = {
        "inputs": [
            {
                "name": "images",
                "datatype": "FP32",
                "shape": [1, *tensor.shape],
                "data": tensor.ravel().tolist(),
                "parameters": {"content_type": "raw", "store": False},
            }
        ]
    }
    status, answer = server.call("POST", "/v2/models/shapes-detector/infer", request)
    assert status == 200, answer
    del request["inputs"][0]["parameters"]
    response = {"model_name": "theirs", "model_version": "3", "outputs": answer["outputs"]}
    for output in response["outputs"]:
        output.pop("parameters", None)
    return request, response


def logged(server: ServerProcess, body: Any) -> dict[str, Any]:
    """Log inferences; all of them are stored."""
    status, answer = server.call("POST", "/api/inferences", body)
    assert status == 200, answer
    assert not answer["refused"], answer
    return answer


def send_event(
    server: ServerProcess, kind: str, id_: str, body: Any, **attributes: str
) -> tuple[int, Any]:
    """Send an event as KServe's logger does."""
    headers = {
        "Ce-Specversion": "1.0",
        "Ce-Id": id_,
        "Ce-Type": EVENT + kind,
        "Ce-Source": "http://localhost:9081/",
        "Ce-Time": "2026-11-01T10:00:00.123456789Z",
        "Ce-Inferenceservicename": "kserved",
        "Ce-Namespace": "prod",
        "Ce-Component": "predictor",
        "Ce-Endpoint": "default",
        "Ce-Metadata": "{}",
        "Content-Type": "application/x-www-form-urlencoded",
        **{f"Ce-{name.capitalize()}": value for name, value in attributes.items()},
    }
    status, _, answer = server.request("POST", "/api/cloudevents", json.dumps(body), headers)
    return status, json.loads(answer)


def report_of(server: ServerProcess, job: dict[str, Any]) -> dict[str, Any]:
    ended = server.ended(job["id"])
    assert ended["state"] == "succeeded", ended
    return server.call("GET", f"/api/reports/{job['id']}")[1]


def box(score: float = 0.9) -> dict[str, Any]:
    return {"label": "star", "score": score, "xmin": 10, "ymin": 10, "xmax": 60, "ymax": 60}


def test_a_stream_of_triton_is_stored_found_and_evaluated_as_if_it_were_served_here(server) -> None:
    lines = [
        json.loads(line)
        for line in (IMAGES / "detection" / "annotations.jsonl").read_text().splitlines()
    ]
    items, truths = [], []
    for line in lines:
        image = (IMAGES / "detection" / line["path"]).read_bytes()
        server.store("shapes-detector", image, metadata={"file": line["path"]})
        request, response = triton(server, tensor_of(image))
        items.append(
            {
                "key": line["path"],
                "image": encoded(image),
                "request": request,
                "response": response,
                "metadata": {"file": line["path"]},
            }
        )
        truths.append({"value": line["path"], "annotations": line["annotations"]})
    body = {"model": "triton-detector", "description": DESCRIPTION, "inferences": items}
    answer = logged(server, body)
    assert answer["stored"] == len(items)
    again = logged(server, body)
    assert (again["stored"], again["repeated"]) == (0, len(items))
    assert [r["ids"] for r in again["inferences"]] == [r["ids"] for r in answer["inferences"]]
    theirs = server.query({"model": "triton-detector", "label": {"name": "star"}})
    ours = server.query({"model": "shapes-detector", "label": {"name": "star"}})
    assert theirs
    assert [i["metadata"]["file"] for i in theirs] == [i["metadata"]["file"] for i in ours]
    assert {i["model"]["version"] for i in theirs} == {"3"}
    for their, our in zip(theirs, ours, strict=True):
        assert their["input"]["hash"] == our["input"]["hash"]
        labels = [p["label"] for p in our["predictions"]]
        assert [p["label"] for p in their["predictions"]] == labels
        corners = [[p[c] for c in ("xmin", "ymin", "xmax", "ymax")] for p in our["predictions"]]
        assert [[p[c] for c in ("xmin", "ymin", "xmax", "ymax")] for p in their["predictions"]] == [
            pytest.approx(row, abs=0.05) for row in corners
        ]
    stated = server.call("POST", "/api/ground-truth", {"join": "meta.file", "items": truths})[1]
    assert stated["stated"] == len(truths), stated
    reports = []
    for model in ("triton-detector", "shapes-detector"):
        status, job = server.call("POST", "/api/evaluations", {"model": model})
        assert status == 202, job
        reports.append(report_of(server, job))
    theirs, ours = ([m["value"] for m in report["metrics"][:5]] for report in reports)
    assert reports[0]["data"]["current"]["n"] == len(items)
    assert theirs == pytest.approx(ours, abs=1e-3)


def test_the_tensor_that_the_network_got_becomes_the_image(server) -> None:
    image = SCENES[0].read_bytes()
    request, response = triton(server, tensor_of(image))
    description = {**DESCRIPTION, "input": {"resize": "letterbox"}}
    body = {"model": "tensors-only", "request": request, "response": response}
    answer = logged(server, {**body, "description": description})
    (id_,) = answer["inferences"][0]["ids"]
    record = server.call("GET", f"/api/inferences/{id_}")[1]
    assert (record["input"]["width"], record["input"]["height"]) == (160, 160)
    assert record["predictions"]
    status, headers, data = server.request("GET", f"/api/inferences/{id_}/input")
    assert (status, headers["content-type"]) == (200, "image/png")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    expected = np.round(tensor_of(image).transpose(1, 2, 0) * 255)
    assert np.abs(pixels - expected).max() <= 1
    # without a description the tensors are kept as what they are
    answer = logged(server, {**body, "model": "undescribed"})
    (id_,) = answer["inferences"][0]["ids"]
    record = server.call("GET", f"/api/inferences/{id_}")[1]
    assert record["task"] == "TENSOR"
    assert record["predictions"] == [
        {
            "name": "output0",
            "datatype": "FP32",
            "shape": [1, 9, 400],
            "data": record["predictions"][0]["data"],
        }
    ]


def test_a_stream_of_kserve_is_paired_found_and_watched_for_drift(server) -> None:
    draw = np.random.default_rng(1)
    sent = 0
    for day, light in (("01", 1.0), ("02", 0.3)):
        for number in range(40):
            pixels = cv2.imread(str(SCENES[int(draw.integers(len(SCENES)))]))
            lit = np.clip(pixels * light * draw.uniform(0.9, 1.1), 0, 255).astype(np.uint8)
            image = encoded(cv2.imencode(".jpg", lit)[1].tobytes())
            request = {"instances": [{"image": {"b64": image}}]}
            response = {"predictions": [{"predictions": [box(float(draw.uniform(0.5, 1)))]}]}
            at = {"time": f"2026-11-{day}T10:{number:02}:00Z"}
            halves = [("request", request), ("response", response)]
            if number % 2:
                halves.reverse()
            states = [
                send_event(server, kind, f"{day}-{number}", body, **at)[1]["state"]
                for kind, body in halves
            ]
            assert states == ["waiting", "stored"]
            sent += 1
    assert len(server.query({"model": "kserved"})) == sent
    assert len(server.query({"model": "kserved", "meta.kserve.namespace": "prod"})) == sent
    path = "/api/models/kserved/baseline"
    day = {"from": "2026-11-01T00:00:00Z", "to": "2026-11-02T00:00:00Z"}
    status, submitted = server.call("PUT", path, day)
    assert status == 200, submitted
    assert server.ended(submitted["job"])["state"] == "succeeded"
    window = {"from": "2026-11-02T00:00:00Z", "to": "2026-11-03T00:00:00Z"}
    status, job = server.call("POST", "/api/drift", {"model": "kserved", **window})
    assert status == 202, job
    report = report_of(server, job)
    assert report["status"] == "drift"
    alarms = {signal["name"] for signal in report["signals"] if signal["alarm"]}
    assert "image.brightness" in alarms


@pytest.mark.parametrize(
    "path",
    [
        "/api/models/triton-detector",
        "/api/models/triton-detector/retention",
        "/api/models/triton-detector/baseline",
        "/console/",
        "/console/models/triton-detector",
        "/console/inferences?q=model%3Dtriton-detector",
        "/console/inferences",
    ],
)
def test_what_is_asked_of_a_model_is_answered_for_one_that_is_served_elsewhere(
    server, path
) -> None:
    logged(server, {"model": "triton-detector", "key": "pages", "predictions": [box()]})
    server.query({"model": "triton-detector"})
    status, _, body = server.request("GET", path)
    assert status == 200, body
    assert b"triton-detector" in body or path.endswith(("baseline", "retention"))


def test_retention_thumbnails_and_erasing_work_for_it(server) -> None:
    answer = logged(
        server,
        {"model": "kept-shortly", "image": encoded(SCENES[0].read_bytes()), "predictions": [box()]},
    )
    (id_,) = answer["inferences"][0]["ids"]
    assert server.query({"model": "kept-shortly"})[0]["id"] == id_
    path = "/api/models/kept-shortly/retention"
    assert server.call("PUT", path, {"inferences_days": 90})[0] == 200
    status, headers, _ = server.request("GET", f"/api/inferences/{id_}/input?w=128")
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    erased = server.call(
        "POST", "/api/inferences/delete", {"where": {"model": "kept-shortly"}, "erase": True}
    )[1]
    assert erased["count"] == 1
    assert server.request("GET", f"/api/inferences/{id_}")[0] == 404


def test_a_half_that_stays_alone_is_stored_alone(server) -> None:
    image = encoded(SCENES[0].read_bytes())
    request = {"instances": [{"b64": image}]}
    assert send_event(server, "request", "alone", request)[1]["state"] == "waiting"
    response = {"predictions": [[box()]]}
    assert send_event(server, "response", "alone-too", response)[1]["state"] == "waiting"
    server.query(None)
    server.wait_until(lambda: server.query({"request_id": "alone"}), 30)
    (lone,) = server.query({"request_id": "alone"})
    assert (lone["status"], lone["predictions"], lone["input"]["kept"]) == (500, [], True)
    assert lone["standard_metadata"]["error"] == "no response was logged"
    server.wait_until(lambda: server.query({"request_id": "alone-too"}), 30)
    (lone,) = server.query({"request_id": "alone-too"})
    assert (lone["status"], lone["input"]["kept"], len(lone["predictions"])) == (200, False, 1)
    assert send_event(server, "response", "alone", response)[1]["state"] == "late"
    assert len(server.query({"request_id": "alone"})) == 1


class Sender:
    """Sends until it is answered, across the end of the server, and repeats some of what was answered."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.refused = 0

    def send(self, call: Any) -> Any:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            try:
                status, answer = call()
            except (OSError, HTTPException, ValueError):
                time.sleep(0.05)
                continue
            if status == 200:
                if random.random() < 0.3:
                    call_again = call
                    try:
                        call_again()
                    except (OSError, HTTPException, ValueError):
                        self.refused += 1
                return answer
            assert status == 503, answer
            time.sleep(0.05)
        raise AssertionError("not answered in time")


def test_what_is_acknowledged_is_stored_once_whatever_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / "shapes-classifier", "--workers", "2")
    server.start()
    sender, image = Sender(server), encoded(SCENES[0].read_bytes())
    request = {"instances": [{"b64": image}]}
    response = {"predictions": [[box()]]}

    def send_pair(number: int) -> None:
        halves = [("request", request), ("response", response)]
        random.shuffle(halves)
        for kind, body in halves:
            sender.send(
                lambda kind=kind, body=body: send_event(server, kind, f"pair-{number}", body)
            )

    def send_items(number: int) -> None:
        items = [
            {"key": f"{number}-{place}", "predictions": [box()], "image": image}
            for place in range(5)
        ]
        body = {"model": "killed", "inferences": items}
        if number % 2:
            body["time"] = "2026-11-05T00:00:00Z"
        answer = sender.send(lambda: server.call("POST", "/api/inferences", body))
        assert not answer["refused"]

    try:
        with ThreadPoolExecutor(6) as threads:
            tasks = [
                threads.submit(send, n) for n in range(150) for send in (send_pair, send_items)
            ]
            killing = threading.Event()
            for _ in range(3):
                killing.wait(1.0)
                server.kill()
                server.start()
            for task in tasks:
                task.result()
        pairs = server.query({"model": "kserved"})
        assert sorted(i["request_id"] for i in pairs) == sorted(f"pair-{n}" for n in range(150))
        assert all(i["predictions"] and i["input"]["kept"] and i["status"] == 200 for i in pairs)
        items = server.query({"model": "killed"})
        assert sorted(i["request_id"] for i in items) == sorted(
            f"{n}-{place}" for n in range(150) for place in range(5)
        )
        assert not any("acknowledged_id" in i["standard_metadata"] for i in [*pairs, *items])
    finally:
        server.stop()
