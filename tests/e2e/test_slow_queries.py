"""Slow searches and floods of exports hold up nobody else, and what is refused says when to come again."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord, InputReference, ModelReference
from tests.server_process import SAMPLE_MODELS, ServerProcess
from tests.unit.store_harness import store_entries

MODEL = SAMPLE_MODELS / "shapes-classifier"
ROWS = 20_000
CLIENTS = 60
LIMIT_S = 30.0
"""Limit of a cheap request beside slow searches; without threads of their own it waited for 40 s."""


def records(count: int) -> list[InferenceRecord]:
    """Make records with long texts."""
    ids = IdSource(900)
    return [
        InferenceRecord(
            seq=ids.next(),
            request_id=f"request-{number}",
            image_no=0,
            model=ModelReference("shapes-classifier", "1", "ab" * 32),
            task="IMAGE_CLASSIFICATION",
            action="predict",
            latency_ms=4.2,
            input=InputReference("image"),
            predictions=[{"label": "star", "score": 0.5}],
            metadata={"note": f"{number:06d}" * 40},
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[Path, str]:
    """Fill a data folder; gives it with the id of one inference."""
    data = tmp_path_factory.mktemp("slow") / "data"
    entries = records(ROWS)
    data.mkdir()
    store_entries(f"sqlite:///{data}/store.db", data / "other" / "journal", entries)
    return data, str(entries[0].seq)


@pytest.fixture
def server(stored) -> Iterator[ServerProcess]:
    few = {
        "engine.assembly.opened_store": {"QUERY_THREADS": 2},
        "engine.assembly.app": {"MAX_WAITING_QUERIES": 8},
    }
    running = ServerProcess(stored[0], MODEL, constants=few)
    running.start()
    yield running
    running.kill()


def slow_body() -> str:
    tests = [{"meta.note": {"contains": f"no such text {number}"}} for number in range(199)]
    return json.dumps({"where": {"or": tests}, "count": "exact"})


def test_cheap_requests_do_not_wait_for_slow_searches(stored, server) -> None:
    stop, statuses, waits = threading.Event(), Counter[int](), list[str]()

    def search() -> None:
        while not stop.is_set():
            status, headers, _ = server.request("POST", "/api/inferences/query", slow_body())
            statuses[status] += 1
            if status == 503:
                waits.append(headers["retry-after"])
                stop.wait(0.2)

    paths = (f"/api/inferences/{stored[1]}", "/metrics", "/api/jobs", "/v2/health/ready")
    longest: dict[str, float] = dict.fromkeys(paths, 0.0)
    with ThreadPoolExecutor(CLIENTS) as pool:
        searches = [pool.submit(search) for _ in range(CLIENTS)]
        server.wait_until(lambda: statuses[503] > CLIENTS)
        for _ in range(5):
            for path in paths:
                begun_s = time.monotonic()
                assert server.request("GET", path)[0] == 200
                longest[path] = max(longest[path], time.monotonic() - begun_s)
        metrics = server.request("GET", "/metrics")[2].decode()
        stop.set()
        for ended in searches:
            ended.result()
    assert max(longest.values()) < LIMIT_S, longest
    assert set(statuses) <= {200, 503}
    assert all(1 <= int(wait) <= 60 for wait in waits)
    assert "quadriga_queries_refused_total 0.0" not in metrics
    assert "quadriga_queries_waiting" in metrics


def test_the_searches_of_clients_that_left_are_ended(server) -> None:
    server.wait_until(
        lambda: server.request("POST", "/api/inferences/query", '{"limit": 1}')[0] == 200
    )
    for _ in range(20):
        connection = HTTPConnection(server.host, timeout=30)
        connection.request("POST", "/api/inferences/query", slow_body())
        time.sleep(0.02)
        connection.close()
    begun_s = time.monotonic()
    server.wait_until(
        lambda: server.request("POST", "/api/inferences/query", '{"limit": 1}')[0] == 200
    )
    assert time.monotonic() - begun_s < LIMIT_S


def test_a_flood_of_exports_is_refused_and_the_accepted_are_done_after_a_restart(
    tmp_path,
) -> None:
    few = {"engine.assembly.app": {"MAX_WAITING_JOBS": 20}}
    server = ServerProcess(tmp_path / "data", MODEL, constants=few).start()
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda _: server.request("POST", "/api/exports", "{}"), range(500))]
    accepted = [json.loads(body)["id"] for status, _, body in answers if status == 202]
    refused = [(headers, body) for status, headers, body in answers if status == 503]
    assert len(accepted) + len(refused) == 500
    assert 20 <= len(accepted) < 500, len(accepted)
    headers, body = refused[0]
    assert json.loads(body)["error"].startswith("expected fewer than 20 waiting jobs, got as many")
    assert int(headers["retry-after"]) > 0
    metrics = server.request("GET", "/metrics")[2].decode()
    assert f"quadriga_jobs_refused_total {len(refused):.1f}" in metrics
    server.kill()
    server.start()
    assert {server.ended(job_id)["state"] for job_id in accepted} == {"succeeded"}
    assert server.request("POST", "/api/exports", "{}")[0] == 202
    assert server.stop() == 0


def test_exports_stop_at_the_quota_and_the_results_before_stay(tmp_path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store_entries(f"sqlite:///{data}/store.db", data / "other" / "journal", records(3000))
    small = {"store.jobs.runner": {"MAX_JOB_BYTES": 3_000_000}}
    server = ServerProcess(data, MODEL, constants=small).start()

    def export() -> dict[str, object]:
        status, job = server.call("POST", "/api/exports", {})
        assert status == 202
        ended: dict[str, object] = server.ended(job["id"])
        return ended

    first, second = export(), export()
    assert (first["state"], second["state"]) == ("succeeded", "failed"), (first, second)
    assert "the files of all jobs to take at most 3000000 bytes" in str(second["error"])
    assert {path.name for path in (data / "jobs" / str(second["id"])).iterdir()} == {
        "job.json",
        "lock",
    }
    server.kill()
    server.start()
    assert server.request("GET", f"/api/jobs/{first['id']}/result")[2].count(b"\n") == 3000
    assert server.stop() == 0
