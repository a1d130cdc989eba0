"""A backup of a running server under load, of PostgreSQL by pg_dump behind it, restored: nothing acknowledged is missing."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input, quadriga

MODEL = "shapes-classifier"
BEFORE = 200
"""Requests that are answered before the backup begins."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


class Load:
    """Clients that send images until they are stopped, and keep the ids that were acknowledged."""

    def __init__(self, server: ServerProcess, images: list[bytes], clients: int = 3) -> None:
        self.acknowledged: list[str] = []
        self.refused = 0
        self._enough, self._stop = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(server, images)) for _ in range(clients)
        ]
        for thread in self._threads:
            thread.start()
        assert self._enough.wait(60)

    def _send(self, server: ServerProcess, images: list[bytes]) -> None:
        connection = HTTPConnection(server.host, timeout=60)
        number = 0
        while not self._stop.wait(0.02):
            body = json.dumps({"inputs": [image_input(images[number % len(images)])]})
            connection.request("POST", f"/v2/models/{MODEL}/infer", body)
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                self.acknowledged.append(response.headers["Quadriga-Inference-Ids"])
            else:
                self.refused += 1
            if len(self.acknowledged) >= BEFORE:
                self._enough.set()
            number += 1
        connection.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_what_was_acknowledged_before_a_backup_is_restored(
    tmp_path: Path, postgres: PostgresServer, kind: str
) -> None:
    paths = sorted((SAMPLE_MODELS / "images" / "classification").glob("*.jpg"))
    images = [path.read_bytes() for path in paths]
    flags = ["--workers", "2"]
    source: list[str] = []
    if kind == "postgresql":
        source = ["--database", postgres.create(migrated=False)]
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / MODEL, *flags, *source).start()
    load = Load(server, images)
    before = set(load.acknowledged)
    made = json.loads(
        quadriga(
            "backup", tmp_path / "backups", "--data", tmp_path / "data", *source, "--json"
        ).stdout
    )
    second_before = set(load.acknowledged)
    if source:  # the folder knows that its database is elsewhere
        refused = quadriga("backup", tmp_path / "half", "--data", tmp_path / "data", code=2).stderr
        assert "set QUADRIGA_DATABASE" in refused
    again = json.loads(
        quadriga(
            "backup", tmp_path / "backups", "--data", tmp_path / "data", *source, "--json"
        ).stdout
    )
    dump = tmp_path / "quadriga.dump"
    if source:
        postgres.run("pg_dump", "--format", "custom", "--file", dump, source[1])
    load.stop()
    assert load.refused == 0
    assert before < second_before
    assert again["new_images"] == 0
    assert made["has_database"] == again["has_database"] == (not source)
    assert made["images"] == len({*images})
    assert server.stop() == 0

    target = ["--data", tmp_path / "restored"]
    if source:
        target += ["--database", postgres.create(migrated=False)]
        postgres.run("pg_restore", "--dbname", target[3], dump)
    restored = json.loads(quadriga("restore", tmp_path / "backups", *target, "--json").stdout)
    assert again["backup"] == f"{tmp_path / 'backups'}/{restored['backup']}"
    quadriga("restore", made["backup"], *target, code=2)  # it is not empty any more
    checked = json.loads(quadriga("check", *target, "--json").stdout)
    assert checked["problem_count"] == 0, checked
    assert checked["images"] == len({*images})
    flags += [str(flag) for flag in target[2:]]
    with ServerProcess(tmp_path / "restored", SAMPLE_MODELS / MODEL, *flags) as back:
        stored = [record["id"] for record in back.query({})]
        assert len(stored) == len(set(stored))
        assert second_before <= set(stored)
        assert back.call("GET", f"/api/inferences/{max(before)}")[0] == 200
        assert back.request("GET", f"/api/inferences/{max(before)}/input")[2] in images
        new = back.store(MODEL, images[0])  # and it goes on, with ids of its own
        assert new not in stored
        assert int(new) > max(map(int, stored))
