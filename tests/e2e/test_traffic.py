"""Traffic between versions on a real server: at every door, in all workers, over a restart, and as the page says."""

import base64
import json
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quadriga.engine.serving.traffic import TrafficRule, draw_version
from quadriga.proto.messages import InferRequest
from tests.pages import blocks, shell
from tests.server_process import ROOT, ServerProcess
from tests.two_versions import MODEL, images, write_two_versions

PATH = f"/api/models/{MODEL}/traffic"
REFRESH_S = 2.5
"""Time until a rule counts in every worker."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    models = write_two_versions(tmp_path / "models")
    with ServerProcess(tmp_path / "data", models, "--workers", "2") as server:
        yield server


def set_rule(server: ServerProcess, **rule: Any) -> None:
    status, answer = server.call("PUT", PATH, rule)
    assert status == 200, answer
    time.sleep(REFRESH_S)


def versions_by_camera(server: ServerProcess) -> dict[str, set[str]]:
    versions = defaultdict(set)
    body = {"where": {"model": MODEL}, "limit": 1000, "consistency": "journal"}
    for inference in server.call("POST", "/api/inferences/query", body)[1]["inferences"]:
        versions[inference["metadata"]["camera_id"]].add(inference["model"]["version"])
    return dict(versions)


def test_every_door_of_every_worker_keeps_a_camera_to_its_version_over_a_restart(tmp_path):
    models = write_two_versions(tmp_path / "models")
    image = next(images())[2]
    rule = TrafficRule({"1": 0.5, "2": 0.5}, "camera_id")
    cameras = [f"camera-{number}" for number in range(12)]
    expected = {}
    for camera in cameras:
        request = InferRequest(MODEL, None, "", [], parameters={"metadata": {"camera_id": camera}})
        expected[camera] = {draw_version(rule, MODEL, request, ["1", "2"]).version}
    assert len({next(iter(versions)) for versions in expected.values()}) == 2
    server = ServerProcess(tmp_path / "data", models, "--workers", "2")
    with server:
        set_rule(server, shares=rule.shares, sticky_by="camera_id")
        for path in (f"/v2/models/{MODEL}/infer", f"/v2/models/m-{MODEL.upper()}/infer", "/infer"):
            for camera in cameras * 2:
                send(server, path, image, camera)
        assert versions_by_camera(server) == expected
    with server:
        for camera in cameras * 2:
            send(server, f"/v2/models/{MODEL}/infer", image, camera)
        assert versions_by_camera(server) == expected
        assert server.call("GET", f"/v2/models/{MODEL}")[1]["versions"] == ["2", "1"]
        for version in ("1", "2"):  # a request that names a version gets it
            send(server, f"/v2/models/{MODEL}/versions/{version}/infer", image, "by name")
        assert versions_by_camera(server)["by name"] == {"1", "2"}


def send(server: ServerProcess, path: str, image: bytes, camera: str) -> None:
    data = base64.b64encode(image).decode()
    tensor = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "data": [data],
        "parameters": {"metadata": json.dumps({"camera_id": camera})},
    }
    prefix = f"/api/serve/serve-model-{MODEL}-pred" if path == "/infer" else ""
    status, answer = server.call("POST", f"{prefix}{path}", {"inputs": [tensor]})
    assert status == 200, answer


def test_a_version_that_is_unloaded_under_traffic_fails_no_request(server):
    image = next(images())[2]
    set_rule(server, shares={"1": 0.5, "2": 0.5})
    failed: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                send(server, f"/v2/models/{MODEL}/infer", image, "any")
            except AssertionError as error:
                failed.append(error)
            time.sleep(0.05)  # the process in which a load is tried needs processors, too

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for kept in ([1], [1, 2], [2], [1, 2]):
            policy = {"version_policy": {"specific": {"versions": kept}}}
            body = {"parameters": {"config": json.dumps(policy)}}
            status, _, answer = server.request(
                "POST", f"/v2/repository/models/{MODEL}/load", json.dumps(body)
            )
            assert status == 200, answer
            time.sleep(0.5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    text = server.request("GET", "/metrics")[2].decode()
    redirected = re.findall(
        r"^quadriga_requests_redirected_total\{.*?\} (\S+)$", text, re.MULTILINE
    )
    assert sum(map(float, redirected)) > 0
    versions = versions_by_camera(server)["any"]
    assert versions == {"1", "2"}


def test_the_commands_of_the_page_try_a_version_and_promote_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("COLUMNS", "200")
    shares, comparison, promotion = (
        block.text
        for block in blocks("docs/serving.md")
        if "/traffic -d" in block.text or "compare" in block.text or "/promote" in block.text
    )

    def run(block: str) -> Any:
        program = f"{sys.executable} -m quadriga.engine.cli compare --server http://{server.host}"
        text = block.replace("localhost:8080", server.host).replace("quadriga compare", program)
        return shell(text, tmp_path)

    state = json.loads(run(shares))
    assert (state["shares"], state["sticky_by"]) == ({"1": 0.9, "2": 0.1}, "camera_id")
    for version in ("1", "2"):
        for _, _, image in list(images())[:3]:
            server.store(f"{MODEL}/versions/{version}", image)
    printed = run(comparison)
    assert "of 3 pairs on the same images differ" in printed
    assert f"{MODEL} 2" in printed
    assert "latency ms p95" in printed
    state = json.loads(run(promotion))
    assert state["shares"] == {"2": 1.0}
    time.sleep(REFRESH_S)
    for _ in range(4):
        send(server, f"/v2/models/{MODEL}/infer", next(images())[2], "after")
    assert versions_by_camera_of(server, "after") == {"2"}


def versions_by_camera_of(server: ServerProcess, camera: str) -> set[str]:
    body = {
        "where": {"and": [{"model": MODEL}, {"meta.camera_id": camera}]},
        "limit": 100,
        "consistency": "journal",
    }
    found = server.call("POST", "/api/inferences/query", body)[1]["inferences"]
    return {inference["model"]["version"] for inference in found}
