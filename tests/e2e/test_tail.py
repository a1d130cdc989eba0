"""The tail of new inferences on real servers: everything comes once, through cuts, workers and replicas, and it holds up no end."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input, quadriga

MODEL = "shapes-classifier"
SENDERS = 4
INFERENCES = 200


@contextmanager
def open_tail(
    server: ServerProcess,
    query: str = "",
    connection: HTTPConnection | None = None,
    **headers: str,
) -> Iterator[HTTPResponse]:
    """Listen within the context, on a new connection if there is none."""
    with closing(connection or server.connect()) as opened:
        accepted = {"Accept": "text/event-stream", **headers}
        opened.request("GET", f"/api/inferences/tail{query}", headers=accepted)
        with closing(opened.getresponse()) as response:
            yield response


class Listener:
    """A client that reads events in a thread, and goes on behind the last one on a new connection after each cut.

    Args:
        server: The server.
        query: The filter.
        cut_after: Events after which each connection is cut; 0 for never.
    """

    def __init__(self, server: ServerProcess, query: str = "", *, cut_after: int = 0) -> None:
        self._server = server
        self._query = query
        self._cut_after = cut_after
        self._last_id = ""
        self._stop = False
        self.ids: list[str] = []
        self.others: list[str] = []
        self.connections = 0
        self.is_listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.is_listening.wait(30)

    def _run(self) -> None:
        while not self._stop:
            headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
            self._connection = self._server.connect()
            with open_tail(self._server, self._query, self._connection, **headers) as response:
                assert response.status == 200, response.read()
                self.connections += 1
                self._read(response)

    def _read(self, response: HTTPResponse) -> None:
        name, event_id, text, count = "", "", "", 0
        while not self._stop:
            received = response.readline()
            if not received:
                return
            line = received.decode().rstrip("\n")
            if line:
                field, _, value = line.partition(": ")
                name = value if field == "event" else name
                event_id = value if field == "id" else event_id
                text += value if field == "data" else ""
                continue
            self._last_id = event_id or self._last_id
            if self._last_id:  # the server says from the beginning where it is
                self.is_listening.set()
            if text and name == "inference":
                self.ids.append(json.loads(text)["id"])
                count += 1
            elif text:
                self.others.append(name)
            if count and count == self._cut_after:
                return
            name, event_id, text = "", "", ""

    def stop(self) -> None:
        """Read no more."""
        self._stop = True
        if self._connection.sock is not None:  # else it has ended
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)


def send(servers: list[ServerProcess], image: bytes) -> list[str]:
    """Send `INFERENCES` images on several connections at once; return the ids."""
    body = json.dumps({"inputs": [image_input(image)]})
    ids: list[str] = []

    def send_some(server: ServerProcess) -> None:
        connection = server.connect()
        for _ in range(INFERENCES // SENDERS):
            connection.request("POST", f"/v2/models/{MODEL}/infer", body)
            response = connection.getresponse()
            response.read()
            ids.append(response.headers["Quadriga-Inference-Ids"])
            connection.close()  # the next one may be another worker's

    threads = [
        threading.Thread(target=send_some, args=(servers[number % len(servers)],))
        for number in range(SENDERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == INFERENCES
    return ids


def worker_of(inference_id: str) -> int:
    return int(inference_id) >> 12 & 1023


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a server with two workers."""
    data = tmp_path_factory.mktemp("tail") / "data"
    with ServerProcess(data, SAMPLE_MODELS / MODEL, "--workers", "2") as server:
        server.wait_until(lambda: server.log.read_text().count("ready in") == 2)
        yield server


def test_all_that_two_workers_store_comes_once_also_through_cuts(
    server: ServerProcess, shape: tuple[bytes, str]
) -> None:
    listeners = [Listener(server), Listener(server, cut_after=17)]
    nothing = Listener(server, "?model=shapes-classifier&meta.camera=none")
    ids = send([server], shape[0])
    assert len(set(map(worker_of, ids))) == 2
    for listener in listeners:
        server.wait_until(lambda listener=listener: len(listener.ids) >= INFERENCES)
    sentinel = server.store(MODEL, shape[0])
    for listener in listeners:
        server.wait_until(lambda listener=listener: listener.ids[-1] == sentinel)
        assert Counter(listener.ids) == Counter([*ids, sentinel])
        assert listener.others == []
        listener.stop()
    assert listeners[1].connections > 10
    assert nothing.ids == []
    nothing.stop()


def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tmp_path / "data", SAMPLE_MODELS / MODEL))
        first = ExitStack()
        tails = [first.enter_context(open_tail(server))]
        tails += [stack.enter_context(open_tail(server)) for _ in range(31)]
        assert {response.status for response in tails} == {200}
        with open_tail(server) as refused:
            assert refused.status == 503
            assert "at most 32 streams" in json.loads(refused.read())["error"]
        for path in ("/v2/health/live", "/v2/health/ready", "/ready"):
            assert server.request("GET", path)[0] == 200
        first.close()

        def is_taken() -> bool:
            tails[0] = stack.enter_context(open_tail(server))
            return tails[0].status == 200

        server.wait_until(is_taken)
        begun_s = time.monotonic()
        assert server.stop() == 0
        # Not after the 24 s that requests have which do not end by themselves.
        assert time.monotonic() - begun_s < 20
        assert "Traceback" not in server.log.read_text()
        for response in tails:
            assert response.read().startswith(b"retry:")  # and ends as a whole response does


def test_a_listener_that_does_not_read_holds_up_no_end(
    tmp_path: Path, shape: tuple[bytes, str]
) -> None:
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / MODEL)
    with server, open_tail(server) as response:
        assert response.status == 200
        metadata = {"note": "x" * 60_000}
        for _ in range(150):  # more than the buffers between the two hold
            server.store(MODEL, shape[0], metadata=json.dumps(metadata))
        with open_tail(server) as other:
            last = server.store(MODEL, shape[0])
            while f"id: {last}\n" != other.readline().decode():
                pass
        begun_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun_s < 20
        assert "ERROR" not in server.log.read_text()


def test_a_revoked_key_ends_its_tail(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, SAMPLE_MODELS / MODEL) as server:
        answer = quadriga("keys", "create", "--role", "read", "--json", "--data", data)
        key = json.loads(answer.stdout)
        headers = {"Authorization": f"Bearer {key['key']}"}
        server.wait_until(lambda: server.request("GET", "/v2")[0] == 401)
        with open_tail(server, **headers) as response:
            assert response.status == 200
            quadriga("keys", "revoke", key["id"], "--data", data)
            text = response.read().decode()  # up to the end
        name, content = text.rstrip().splitlines()[-2:]
        assert name == "event: end"
        assert "key" in json.loads(content.removeprefix("data: "))["error"]


def test_what_a_replica_stores_comes_too(tmp_path: Path, shape: tuple[bytes, str]) -> None:
    postgres = PostgresServer()
    url = postgres.create(migrated=False)
    flags = (SAMPLE_MODELS / MODEL, "--database", url)
    with (
        ServerProcess(tmp_path / "a", *flags) as one,
        ServerProcess(tmp_path / "b", *flags) as other,
    ):
        listeners = [Listener(one), Listener(other, cut_after=30)]
        ids = send([one, other], shape[0])
        for listener in listeners:
            one.wait_until(lambda listener=listener: len(listener.ids) >= INFERENCES)
        sentinel = one.store(MODEL, shape[0])
        for listener in listeners:
            one.wait_until(lambda listener=listener: listener.ids[-1] == sentinel)
            assert Counter(listener.ids) == Counter([*ids, sentinel])
            listener.stop()
    postgres.close()
