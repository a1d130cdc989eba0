"""What a server answers when the database or the disk cannot follow, and that it recovers by itself."""

import base64
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input

POLICIES = ("fail", "shed", "block")

QUICK = {"engine.serving.journal_capacity": {"BLOCK_S": 0.2}}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The classifier three times, each with a policy of its own."""
    for policy in POLICIES:
        folder = tmp_path / "models" / policy
        shutil.copytree(SAMPLE_MODELS / "shapes-classifier", folder)
        with (folder / "model.toml").open("a") as file:
            file.write(f'\n[store]\njournal_full = "{policy}"\n')
    return tmp_path / "models"


def noise(seed: int) -> bytes:
    """Make an image of 12 kB that is like no other."""
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


def infer(server: ServerProcess, model: str, image: bytes, **parameters):
    """Ask a model: status, headers, answer."""
    body = json.dumps({"inputs": [image_input(image, **parameters)]})
    status, headers, answer = server.request("POST", f"/v2/models/{model}/infer", body)
    return status, headers, json.loads(answer)


def check_stored(headers, answer) -> str:
    """See that an answer acknowledges one inference; gives its id."""
    assert "quadriga-stored" not in headers
    inference_id: str = answer["outputs"][0]["parameters"]["inference_id"]
    assert headers["quadriga-inference-ids"] == inference_id
    return inference_id


def check_shed(status, headers, answer) -> None:
    """See that an answer is one, and says that it is not kept."""
    assert (status, headers["quadriga-stored"]) == (200, "false")
    assert answer["outputs"][0]["parameters"] == {"stored": False}
    assert answer["outputs"][0]["data"][0]
    assert "quadriga-inference-ids" not in headers


def check_refused(status, headers, answer) -> None:
    """See that a request is refused for now."""
    assert (status, headers["retry-after"]) == (503, "1"), answer
    assert re.search("cannot store|wait for the database", answer["error"]), answer


def test_each_policy_holds_while_the_writer_stands_still(data, models, shape):
    flags = ("--journal-hard-bytes", "20000")
    with ServerProcess(data, models, *flags, constants=QUICK) as server:
        status, headers, answer = infer(server, "fail", shape[0])
        acknowledged = [check_stored(headers, answer)]
        assert "quadriga-store-lag" not in headers
        assert status == 200
        writer = server.child_pid("writer")
        os.kill(writer, signal.SIGSTOP)
        lags: set[int] = set()

        def is_full() -> bool:
            status, headers, answer = infer(server, "fail", shape[0])
            if status == 200:
                acknowledged.append(check_stored(headers, answer))
                lags.add(int(headers.get("quadriga-store-lag", 0)))
                return False
            check_refused(status, headers, answer)
            return True

        server.wait_until(is_full)
        assert max(lags) > 10_000
        status, headers, answer = infer(server, "shed", shape[0])
        check_shed(status, headers, answer)
        assert int(headers["quadriga-store-lag"]) > 20_000
        check_refused(*infer(server, "block", shape[0]))
        assert infer(server, "fail", shape[0], store=False)[0] == 200
        moving = threading.Timer(0.1, os.kill, (writer, signal.SIGCONT))
        moving.start()
        server.wait_until(lambda: infer(server, "block", shape[0])[0] == 200)
        server.wait_until(lambda: not is_full())
        stored = {record["id"] for record in server.query({"model": "fail"})}
        assert stored == set(acknowledged)
        assert server.query({"model": "shed"}) == []


class SmallDisk:
    """A file system of 8 MB at the data folder, which can be filled up."""

    def __init__(self, data: Path) -> None:
        data.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(data)]
        subprocess.run(command, check=True, capture_output=True)
        self._data = data

    def fill(self, _: ServerProcess) -> None:
        with suppress(OSError), (self._data / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))

    def free(self, _: ServerProcess) -> None:
        (self._data / "ballast").unlink()

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self._data)], check=True)


class NoMoreBytes:
    """Processes that may write no more bytes to files: what is left where nobody may mount."""

    def fill(self, server: ServerProcess) -> None:
        self._limit(server, 0)

    def free(self, server: ServerProcess) -> None:
        self._limit(server, resource.RLIM_INFINITY)

    def remove(self) -> None:
        pass

    @staticmethod
    def _limit(server: ServerProcess, size: int) -> None:
        for pid in server.child_pids()[1:]:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture(params=["small disk", "no more bytes"])
def disk(request, data) -> Iterator[SmallDisk | NoMoreBytes]:
    small_disk: SmallDisk | NoMoreBytes = NoMoreBytes()
    if request.param == "small disk":
        with suppress(OSError, subprocess.CalledProcessError):  # then the limit, once more
            small_disk = SmallDisk(data)
    yield small_disk
    small_disk.remove()


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_full_disk_acknowledges_nothing_and_the_server_recovers(data, models, disk, durability):
    flags = ("--durability", durability)
    with ServerProcess(data, models, *flags, constants=QUICK) as server:
        children = server.child_pids()
        acknowledged = [check_stored(*infer(server, "fail", noise(0))[1:])]
        server.query({})  # by now the database is there
        disk.fill(server)
        refused = 0
        for seed in range(1, 30):  # what is open may still take a few
            status, headers, answer = infer(server, "fail", noise(seed))
            if status == 200:
                acknowledged.append(check_stored(headers, answer))
            else:
                check_refused(status, headers, answer)
                refused += 1
        assert refused > 20
        check_shed(*infer(server, "shed", noise(50)))
        check_refused(*infer(server, "block", noise(51)))
        assert infer(server, "fail", noise(52), store=False)[0] == 200
        disk.free(server)
        for seed in range(60, 63):
            status, headers, answer = infer(server, "fail", noise(seed))
            assert status == 200, answer
            acknowledged.append(check_stored(headers, answer))
        server.wait_until(
            lambda: server.call("POST", "/api/inferences/query", {})[0] == 200, timeout_s=30
        )
        stored = [record["id"] for record in server.query({})]
        assert sorted(stored) == sorted(acknowledged)
        for seq in stored:
            assert server.request("GET", f"/api/inferences/{seq}/input")[0] == 200
        assert server.child_pids() == children, "a process died"


def test_memory_and_database_are_durabilities_of_a_model(data, tmp_path, shape):
    for durability in ("memory", "database"):
        folder = tmp_path / "models" / durability
        shutil.copytree(SAMPLE_MODELS / "shapes-classifier", folder)
        with (folder / "model.toml").open("a") as file:
            file.write(f'\n[store]\ndurability = "{durability}"\n')
    server = ServerProcess(data, tmp_path / "models").start()
    acknowledged = set()
    for number in range(40):
        model = ("memory", "database")[number % 2]
        status, headers, answer = infer(server, model, shape[0])
        assert status == 200, answer
        inference_id = check_stored(headers, answer)
        acknowledged.add(inference_id)
        if model == "database":  # in the database itself, whatever the journal still holds
            status, page = server.call(
                "POST", "/api/inferences/query", {"where": {"id": inference_id}}
            )
            assert [record["id"] for record in page["inferences"]] == [inference_id], (status, page)
    assert server.stop() == 0  # an end in order writes what waits in memory
    with server:
        assert {record["id"] for record in server.query({})} == acknowledged


def test_each_protocol_is_in_the_standard_metadata(data, photo, shape):
    text = base64.b64encode(shape[0]).decode()
    image = {"inputs": [image_input(shape[0])]}
    prompt = {"text_input": "What is it?", "image": base64.b64encode(photo).decode()}
    event = {"ce-specversion": "1.0", "ce-source": "/a", "ce-type": "b", "ce-id": "1"}
    model = "/v2/models/shapes-classifier"
    requests = [
        ("chariot-v2-kserve", f"{model}/infer", image, {}),
        ("v2-cloudevents", f"{model}/infer", image, event),
        ("v1", "/v1/models/shapes-classifier:predict", {"instances": [{"b64": text}]}, {}),
        ("chariot-v2", "/api/serve/serve-model-shapes-classifier-pred/infer", {"input": text}, {}),
        ("generate", "/v2/models/shapes-image-text/generate", prompt, {}),
        ("generate", "/v2/models/shapes-image-text/generate_stream", prompt, {}),
    ]
    with ServerProcess(data) as server:
        for _, path, body, headers in requests:
            status, _, answer = server.request("POST", path, json.dumps(body), headers)
            assert status == 200, answer
        records = server.query({}, order="ts")
    assert [record["standard_metadata"]["protocol"] for record in records] == [
        protocol for protocol, *_ in requests
    ]
    for record in records:
        standard = record["standard_metadata"]
        assert standard.keys() == {"engine", "preprocessing", "protocol", "stages_ms"}
        assert standard["stages_ms"]["infer"] > 0
        assert record["input"]["bytes"] in (len(photo), len(shape[0]))
        assert record["status"] == 200
