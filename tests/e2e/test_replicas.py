"""Servers that share a PostgreSQL, each with a data folder of its own, give out different ids."""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.postgres_server import PostgresServer
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input
from tests.unit.store_harness import run_statements

MODEL = "shapes-classifier"
LOAD_S = 3.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.create(migrated=False)


@pytest.fixture
def image(shape: tuple[bytes, str]) -> bytes:
    return shape[0]


def replica(data: Path, url: str, *flags: str) -> ServerProcess:
    return ServerProcess(data, SAMPLE_MODELS / MODEL, "--database", url, *flags)


def worker_of(inference_id: str) -> int:
    return int(inference_id) >> 12 & 1023


def acknowledged_ids(server: ServerProcess, image: bytes, acknowledged: list[str]) -> None:
    """Send images for a while, and collect the ids."""
    body = json.dumps({"inputs": [image_input(image)]})
    connection = HTTPConnection(server.host, timeout=60)
    end_s = time.monotonic() + LOAD_S
    while time.monotonic() < end_s:
        time.sleep(0.01)
        connection.request("POST", f"/v2/models/{MODEL}/infer", body)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        acknowledged.append(response.headers["Quadriga-Inference-Ids"])
    connection.close()


def test_every_acknowledged_id_of_two_servers_is_found_once(
    tmp_path: Path, url: str, image: bytes
) -> None:
    servers = [replica(tmp_path / name, url, "--workers", "2") for name in ("a", "b")]
    for server in servers:
        server.start(ready=False)
    for server in servers:
        server.wait_until(lambda server_=server: server_.call("GET", "/v2/health/ready")[0] == 200)
    acknowledged: list[str] = []
    threads = [
        threading.Thread(target=acknowledged_ids, args=(server, image, acknowledged))
        for server in servers * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.query({"id": acknowledged[0]})  # waits for the journal of each
    stored = [record["id"] for record in servers[0].query({})]
    assert [server.stop() for server in servers] == [0, 0]
    assert len(acknowledged) > 20
    assert Counter(acknowledged) == Counter(stored)
    assert len({worker_of(inference_id) for inference_id in acknowledged}) >= 2


@pytest.mark.parametrize(("is_shared", "status"), [(True, 200), (False, 400)])
def test_servers_with_one_session_key_serve_the_signed_urls_of_each_other(
    tmp_path: Path, url: str, image: bytes, *, is_shared: bool, status: int
) -> None:
    blobs = ("--blobs", str(tmp_path / "images"))
    servers = [
        replica(tmp_path / name, url, *blobs, "--session-key", "k" * 32 + ("" if is_shared else name)).start()
        for name in ("a", "b")
    ]  # fmt: skip
    inference_id = servers[0].store(MODEL, image)
    servers[0].query({"id": inference_id})
    _, record = servers[0].call("GET", f"/api/inferences/{inference_id}?presign=true")
    path = record["input"]["url"].partition(servers[0].host)[2]
    answers = [server.request("GET", path) for server in servers]
    assert [server.stop() for server in servers] == [0, 0]
    assert (answers[0][0], answers[0][2]) == (200, image)
    assert answers[1][0] == status


def test_a_request_that_goes_to_both_servers_under_one_key_is_stored_once(
    tmp_path: Path, url: str, image: bytes
) -> None:
    """A balancer sends the second try to another server, maybe while the first one is answered.

    A client may hold either id: each of them is taken by each server for the inference that is stored.
    """
    servers = [replica(tmp_path / name, url).start() for name in ("a", "b")]
    body = json.dumps({"inputs": [image_input(image)]})
    answers: list[tuple[int, str]] = []
    ids_by_request: dict[str, set[str]] = {f"request-{number}": set() for number in range(40)}

    def send(server: ServerProcess) -> None:
        for number in range(40):
            headers = {"Idempotency-Key": f"key-{number}", "X-Request-ID": f"request-{number}"}
            status, received, _ = server.request("POST", f"/v2/models/{MODEL}/infer", body, headers)
            answers.append((status, received["quadriga-inference-ids"]))
            ids_by_request[f"request-{number}"].add(received["quadriga-inference-ids"])

    threads = [threading.Thread(target=send, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.query({})  # waits for the journal of each
    stored = {record["id"]: record["request_id"] for record in servers[0].query({})}
    assert [status for status, _ in answers] == [200] * 80
    assert Counter(stored.values()) == dict.fromkeys(ids_by_request, 1)
    assert stored.keys() <= {inference_id for _, inference_id in answers}
    for inference_id, request in stored.items():
        (other_id,) = ids_by_request[request] - {inference_id}
        check_second_id(servers, first=inference_id, second=other_id)
    assert [server.stop() for server in servers] == [0, 0]


def check_second_id(servers: list[ServerProcess], *, first: str, second: str) -> None:
    """Check that the second id of an inference leads to it: to read it, its image and its page, and to change it."""
    for server in servers:
        answer = server.call("GET", f"/api/inferences/{second}")[1]
        assert answer["id"] == first
        for path in (f"/api/inferences/{second}/input", f"/console/inferences/{second}"):
            assert server.request("GET", path)[0] == 200
    asked, other = servers
    truth = [{"label": f"after {second}"}]
    changes: list[tuple[str, str, Any]] = [
        ("PUT", f"/api/inferences/{second}/ground-truth", truth),
        ("POST", f"/api/inferences/{second}/metadata", {"set": {"asked": second}}),
    ]
    for method, path, body in changes:
        status, answer = asked.call(method, path, body)
        assert (status, answer["id"]) == (200, first)
    assert other.call("GET", f"/api/inferences/{first}/ground-truth")[1]["annotations"] == truth
    assert other.call("GET", f"/api/inferences/{first}")[1]["metadata"] == {"asked": second}


def test_a_killed_server_keeps_its_number_and_another_gets_the_next(
    tmp_path: Path, url: str, image: bytes
) -> None:
    first, second = replica(tmp_path / "a", url).start(), replica(tmp_path / "b", url).start()
    numbers = [worker_of(server.store(MODEL, image)) for server in (first, second)]
    second.kill()
    first.kill()
    for server in (second, first):  # the other way round
        server.start()
    assert [worker_of(server.store(MODEL, image)) for server in (first, second)] == numbers
    assert numbers == [0, 1]
    metrics = second.request("GET", "/metrics")[2]
    for line in (b"clock_jumps_total 0.0", b"clock_ahead_seconds 0.0"):
        assert b"\nquadriga_store_" + line + b"\n" in metrics
    assert [first.stop(), second.stop()] == [0, 0]


def test_a_copied_data_folder_is_refused_while_the_original_serves(
    tmp_path: Path, url: str, image: bytes
) -> None:
    with replica(tmp_path / "a", url) as original:
        original.store(MODEL, image)
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        copy = replica(tmp_path / "copy", url).start(ready=False)
        assert copy.process is not None
        assert copy.call("POST", f"/v2/models/{MODEL}/infer", {})[0] != 200
        assert copy.process.wait(60) != 0
        copy.stop()
        assert "the data folder is a copy of one that a server on" in copy.log.read_text()
        original.store(MODEL, image)
        assert len(original.query({})) == 2


def test_a_server_that_was_here_before_starts_while_the_database_is_away(
    tmp_path: Path, postgres: PostgresServer, url: str, image: bytes
) -> None:
    server = replica(tmp_path / "a", url).start()
    acknowledged = [server.store(MODEL, image)]
    server.kill()
    postgres.stop("immediate")
    try:
        server.start()
        acknowledged.append(server.store(MODEL, image))
    finally:
        postgres.start()
    server.wait_until(lambda: server.call("POST", "/api/inferences/query", {})[0] == 200)
    server.wait_until(
        lambda: len(server.call("POST", "/api/inferences/query", {})[1]["inferences"]) == 2
    )
    assert {record["id"] for record in server.query({})} == {*acknowledged}
    assert len({worker_of(inference_id) for inference_id in acknowledged}) == 1
    assert server.stop() == 0


def test_servers_whose_leases_ran_out_in_an_outage_all_come_back(
    tmp_path: Path, postgres: PostgresServer, url: str, image: bytes
) -> None:
    servers = [replica(tmp_path / name, url).start() for name in ("a", "b")]
    acknowledged = [server.store(MODEL, image) for server in servers]
    for server in servers:
        server.kill()
    two_days_ms = 2 * 86_400_000
    run_statements(url, ("UPDATE worker_number SET seen_ms = seen_ms - ?", (two_days_ms,)))
    postgres.stop("fast")
    try:
        for server in servers:
            server.start()
        for _ in range(5):
            acknowledged += [server.store(MODEL, image) for server in servers]
    finally:
        postgres.start()
    servers[0].wait_until(
        lambda: (
            len(servers[0].call("POST", "/api/inferences/query", {})[1].get("inferences", ()))
            == len(acknowledged)
        )
    )
    third = replica(tmp_path / "c", url).start()
    acknowledged.append(third.store(MODEL, image))
    stored = [record["id"] for record in third.query({})]
    assert Counter(stored) == Counter(acknowledged)
    numbers = [[worker_of(id_) for id_ in acknowledged[first::2]] for first in (0, 1)]
    assert numbers == [[0] * 6 + [2], [1] * 6]
    assert [server.stop() for server in (*servers, third)] == [0, 0, 0]


def test_a_new_data_folder_is_not_ready_until_its_database_answers(
    tmp_path: Path, postgres: PostgresServer, url: str, image: bytes
) -> None:
    postgres.stop("fast")
    server = replica(tmp_path / "a", url)
    try:
        server.start(ready=False)
        reason = "expected worker numbers from the database, got no answer"
        server.wait_until(lambda: reason in server.call("GET", "/v2/health/ready")[1]["error"])
        assert server.call("GET", "/v2/health/live")[0] == 200
        body = {"inputs": [image_input(image)]}
        assert server.call("POST", f"/v2/models/{MODEL}/infer", body)[0] != 200
    finally:
        postgres.start()
    server.wait_until(lambda: server.call("GET", "/v2/health/ready")[0] == 200)
    acknowledged = server.store(MODEL, image)
    assert [record["id"] for record in server.query({})] == [acknowledged]
    assert server.stop() == 0
