"""Two workers beside one socket: connections are shared, and a worker that does not answer is passed over."""

import collections
import contextlib
import http.client
import json
import os
import signal

import pytest

from quadriga.store.records.ids import COUNTER_BITS, WORKERS
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

IMAGE = next((IMAGES / "classification").glob("*.jpg")).read_bytes()
BODY = json.dumps({"inputs": [image_input(IMAGE)]})
CONNECTIONS = 16


@pytest.fixture
def server(tmp_path):
    flags = ("--workers", "2", "--threads", "1")
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags).start()
    yield server
    assert server.stop() == 0


def answering_worker(connection: http.client.HTTPConnection) -> int:
    """Ask once over a connection that stays open; return the number of the worker."""
    connection.request("POST", "/v2/models/shapes-classifier/infer", BODY)
    answer = json.loads(connection.getresponse().read())
    inference_id = int(answer["outputs"][0]["parameters"]["inference_id"])
    return (inference_id >> COUNTER_BITS) % WORKERS


@pytest.fixture
def open_connections(server):
    """Open some connections at once, which stay open until the end of the test."""
    with contextlib.ExitStack() as stack:

        def connect(count: int) -> list[http.client.HTTPConnection]:
            connections = [
                stack.enter_context(contextlib.closing(server.connect())) for _ in range(count)
            ]
            for connection in connections:
                connection.connect()
            return connections

        yield connect


def test_workers_share_connections_that_are_opened_at_once(open_connections):
    connections = open_connections(CONNECTIONS)
    counts = collections.Counter(map(answering_worker, connections))
    assert len(counts) == 2


def test_a_worker_that_does_not_answer_takes_nothing_from_the_other(server, open_connections):
    stopped = server.child_pid("worker-0")
    os.kill(stopped, signal.SIGSTOP)
    try:
        answers = collections.Counter(map(answering_worker, open_connections(CONNECTIONS)))
        assert answers.total() == CONNECTIONS
        assert len(answers) == 1
    finally:
        os.kill(stopped, signal.SIGCONT)
