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

from quadriga.engine.serving.traffic_rules import TrafficRule, draw_version
from quadriga.proto.messages import InferRequest
from tests.pages import blocks, shell
from tests.server_process import ROOT, ServerProcess
from tests.two_versions import MODEL, images, truths, write_two_versions

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


def shadows(server: ServerProcess, outcome: str) -> int:
    text = server.request("GET", "/metrics")[2].decode()
    pattern = rf'^quadriga_shadow_requests_total{{[^}}]*outcome="{outcome}"[^}}]*}} (\S+)$'
    return int(sum(float(value) for value in re.findall(pattern, text, re.MULTILINE)))


def send_until_shadowed(server: ServerProcess, count: int) -> list[tuple[str, str]]:
    """Send images, each again until its shadow has answered; return the names and the ids of the live inferences."""
    sent = []
    until_s = time.monotonic() + 300
    for name, light, image in list(images())[:count]:
        metadata = json.dumps({"path": name, "light": light})
        answered, inference_id = shadows(server, "answered"), ""
        while shadows(server, "answered") == answered:
            assert time.monotonic() < until_s, server.log.read_text()[-2000:]
            others = shadows(server, "dropped") + shadows(server, "failed")
            output = server.infer(MODEL, image, metadata=metadata)
            inference_id = output["parameters"]["inference_id"]
            while shadows(server, "answered") == answered and (
                shadows(server, "dropped") + shadows(server, "failed") == others
            ):
                assert time.monotonic() < until_s, server.log.read_text()[-2000:]
                time.sleep(0.1)
        sent.append((name, inference_id))
    return sent


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


def metric_values(report: dict[str, Any]) -> Any:
    """Return all numbers of a comparison, and those of the live side."""
    (comparison,) = report["comparisons"]
    own = [(metric["type"], metric["value"]) for metric in report["metrics"]]
    return own, comparison["n"], comparison["metrics"], comparison["differences"]


def evaluate(server: ServerProcess, other: dict[str, str]) -> dict[str, Any]:
    body = {"model": MODEL, "version": "1", "compare": [other]}
    status, job = server.call("POST", "/api/evaluations", body)
    assert status == 202, job
    server.wait_until(lambda: server.call("GET", f"/api/jobs/{job['id']}")[1]["state"] not in ("queued", "running"))  # fmt: skip
    status, report = server.call("GET", f"/api/reports/{job['id']}")
    assert status == 200, report
    return report


def test_what_a_shadow_says_equals_an_offline_evaluation_of_both_versions(server):
    set_rule(server, shares={"1": 1}, shadow={"version": "2"})
    sent = send_until_shadowed(server, 12)
    names = {name for name, _ in sent}
    lines = [line for line in truths().splitlines() if json.loads(line)["path"] in names]
    status, _, answer = server.request("POST", "/api/ground-truth", b"\n".join(lines))
    assert status == 200, answer
    body = {"a": f"{MODEL}:1", "b": f"{MODEL}:2", "score": 0.25}
    by_link = server.call("POST", "/api/inferences/comparison", body)[1]
    assert by_link["paired_by"] == "shadow"
    assert by_link["pairs"] >= len(sent)
    assert by_link["b"]["model"] == f"{MODEL}~shadow"
    shadowed = evaluate(server, {"model": f"{MODEL}~shadow", "version": "2"})
    for name, light, image in list(images())[: len(sent)]:
        server.store(
            f"{MODEL}/versions/2", image, metadata=json.dumps({"path": name, "light": light})
        )
    server.query({"model": MODEL}, limit=1, consistency="journal")
    offline = evaluate(server, {"model": MODEL, "version": "2"})
    assert metric_values(shadowed) == metric_values(offline)
    page = {"a": f"{MODEL}:1", "b": f"{MODEL}:2", "score": 0.25, "limit": 200}
    disagreements = server.call("POST", "/api/inferences/disagreements", page)[1]
    by_image, linked = (
        {pair["a"]["input"]["hash"] for pair in found["disagreements"]}
        for found in (disagreements, by_link)
    )
    assert by_image == linked
    assert by_link["different"] >= len(linked) > 0


def test_the_commands_of_the_page_try_a_version_and_promote_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("COLUMNS", "200")
    shares, shadow, comparison, promotion = (
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
    state = json.loads(run(shadow))
    assert state["shadow"] == {"version": "2", "share": 0.2}
    set_rule(server, shares={"1": 1}, shadow={"version": "2"})
    send_until_shadowed(server, 3)
    server.query({"model": MODEL}, limit=1, consistency="journal")
    printed = run(comparison)
    assert "as live and shadow differ" in printed
    assert f"{MODEL}~shadow 2" in printed
    assert "latency ms p95" in printed
    state = json.loads(run(promotion))
    assert (state["shares"], state["shadow"]) == ({"2": 1.0}, None)
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
