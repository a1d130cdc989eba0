"""A client that sends again what may not have arrived: each inference is stored once, whatever happens in between."""

import collections
import json
import os
import signal
import threading
import time

import pytest

from quadriga.client import Client, ClientError, Conflict
from tests.cutting_proxy import CuttingProxy
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

MODEL = "shapes-classifier"
PATH = f"/v2/models/{MODEL}/infer"
PHOTO = (IMAGES / "classification" / "scene_01.jpg").read_bytes()
REQUESTS = 1000
SENDERS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("repeats") / "data"
    with ServerProcess(data, SAMPLE_MODELS / MODEL, "--workers", "2") as process:
        yield process


@pytest.fixture
def key(request):
    """A key of the test's own; its inferences have it in their metadata, too."""
    return request.node.name


def kill_all(server: ServerProcess) -> None:
    """End every process of a server at once, as a loss of power of its container would."""
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.process.stdout.close()


def stored_numbers(server: ServerProcess, key: str) -> collections.Counter:
    rows = server.query({"meta.key": key})
    return collections.Counter(row["metadata"]["number"] for row in rows)


def test_a_thousand_requests_over_a_line_that_is_cut_are_stored_once_each(server, key):
    """Connections end at random points; the server is killed in the middle, and starts again on another port."""
    proxy = CuttingProxy(lambda: server.host, share=0.05, seed=7)
    numbers, ids, failures = iter(range(REQUESTS)), {}, []
    lock = threading.Lock()

    def send() -> None:
        with Client(proxy.url, key="", timeout=20, retries=200, total_timeout=150) as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    ids[number] = client.infer(MODEL, PHOTO, {"number": number, "key": key}).id
                except ClientError as error:
                    failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    server.wait_until(lambda: len(ids) > REQUESTS // 2, 150)
    kill_all(server)
    server.start()
    for thread in threads:
        thread.join()
    proxy.close()
    assert not failures
    assert min(proxy.cuts.values()) > 10
    assert stored_numbers(server, key) == dict.fromkeys(range(REQUESTS), 1)
    found = {row["metadata"]["number"]: row["id"] for row in server.query({"meta.key": key})}
    assert found == ids


def send_key(server: ServerProcess, key: str, number: int = 1, **headers: str):
    body = json.dumps({"inputs": [image_input(PHOTO, metadata={"number": number, "key": key})]})
    status, received, answer = server.request(
        "POST", PATH, body, {"Idempotency-Key": key, **headers}
    )
    return status, received.get("quadriga-inference-ids"), json.loads(answer)


def test_one_key_sent_to_both_workers_at_once_is_one_inference(server, key):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(send_key(server, key)[:2]))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    assert answers[0][0] == 200
    assert stored_numbers(server, key) == {1: 1}


def test_a_key_outlives_kill_and_restart_and_keeps_its_id(server, key):
    first = send_key(server, key)
    kill_all(server)
    server.start()
    assert send_key(server, key)[:2] == first[:2]
    assert stored_numbers(server, key) == {1: 1}


def test_a_key_that_comes_with_another_request_is_refused(server, key):
    send_key(server, key)
    status, _, answer = send_key(server, key, number=2)
    assert status == 409
    assert "Idempotency-Key of its own" in answer["error"]
    with Client(f"http://{server.host}", key="") as client:
        client.infer(MODEL, PHOTO, {"number": 5, "key": key}, idempotency_key="mine")
        with pytest.raises(Conflict, match="used with another request"):
            client.infer(MODEL, PHOTO, {"number": 6, "key": key}, idempotency_key="mine")
    assert stored_numbers(server, key) == {1: 1, 5: 1}


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\xe4"])
def test_a_key_that_is_none_is_an_error_of_the_request(server, key):
    status, _, answer = send_key(server, key)
    assert status == 400
    assert "expected Idempotency-Key" in answer["error"]


def test_a_request_that_stores_nothing_needs_no_claim(server, key):
    with Client(f"http://{server.host}", key="") as client:
        for number in range(2):
            parameters = {"store": False}
            result = client.infer(
                MODEL,
                PHOTO,
                {"number": number, "key": key},
                parameters=parameters,
                idempotency_key=key,
            )
            assert result.id is None
    assert not stored_numbers(server, key)


def test_several_images_of_a_request_have_their_ids_again(server, key):
    image = image_input(PHOTO, metadata={"number": 1, "key": key})
    body = json.dumps({"inputs": [image | {"name": "a"}, image | {"name": "b"}]})
    ids = {
        server.request("POST", PATH, body, {"Idempotency-Key": key})[1]["quadriga-inference-ids"]
        for _ in range(3)
    }
    assert len(ids) == 1
    assert ids.pop().count(",") == 1
    assert stored_numbers(server, key) == {1: 2}


def test_the_counters_count_what_is_stored_and_not_what_is_sent_again(server, key):
    def stored_total() -> float:
        lines = server.request("GET", "/metrics")[2].decode().splitlines()
        (line,) = (line for line in lines if line.startswith("quadriga_store_stored_total"))
        return float(line.split()[-1])

    time.sleep(1.5)  # counters of the other worker come later
    before = stored_total()
    for _ in range(3):
        send_key(server, key)
    server.wait_until(lambda: stored_total() > before)
    time.sleep(1.5)
    assert stored_total() == before + 1
