"""Random requests at every door: no fault of the server, nothing of its machine in an answer, no change without a key."""

import asyncio
import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quadriga.engine.assembly import app
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.test_doors import doors

ROLES = ("infer", "read", "annotate", "monitor")
WORDS = ["shapes-classifier", "m-shapes-detector", "x", "..", "%2e%2e", "1", "0", "-1", "", "é", "a" * 300,
         "versions", "infer", "inferences", "\\", "'; DROP TABLE inference --", "%00", "*", "{name}"]  # fmt: skip
VALUES: list[Any] = [None, True, 0, -1, 1e308, 2**64, "", "a", "é\ud800", [], {}, [[]], {"and": []},
                     '{"ts": {"ge": "-1h"}}', {"meta.a": {"ge": 1}}, "-24h", [1] * 50]  # fmt: skip
FIELDS = ["inputs", "instances", "parameters", "model", "where", "limit", "cursor", "order", "task", "annotations",
          "baseline", "from", "to", "set", "remove", "data", "name", "shape", "datatype", "source", "all", "group"]  # fmt: skip
HEADER_NAMES = [b"host", b"origin", b"sec-fetch-site", b"content-type", b"content-encoding", b"accept",
                b"accept-encoding", b"inference-header-content-length", b"ce-id", b"ce-specversion", b"if-match",
                b"x-request-id", b"request-timeout", b"transfer-encoding", b"x-forwarded-for", b"cookie"]  # fmt: skip
HEADER_VALUES = [b"", b"localhost", b"evil.example", b"null", b"cross-site", b"application/json", b"gzip", b"*/*", b"0",
                 b"-1", b"1.0", b"text/html", b'"a"', b"\xff\x00", b"application/cloudevents+json", b"9" * 500]  # fmt: skip


class Fuzzer:
    """Random requests to one server, and what its answers must not have."""

    def __init__(self, application: Application, keys: dict[str, str], seed: int) -> None:
        self._asgi = application.asgi
        self._random = random.Random(seed)
        self._doors = doors(application)
        self._keys = keys
        folder = Path(application._settings.data).parent
        secrets = [key.partition(".")[2] for key in keys.values()]
        texts = [str(folder), str(Path(__file__).parents[3]), "Traceback", *secrets]
        self._forbidden = re.compile(b"|".join(re.escape(text).encode() for text in texts))
        self.statuses: Counter[int] = Counter()

    async def send(self, role: str) -> None:
        """Send a random request, with the key of a role or with none that is valid."""
        need, scope, body = self._request(role)
        status, answer = await self._ask(scope, body)
        self.statuses[status] += 1
        described = (
            f"{scope['method']} {scope['path']!r} {scope['headers']} {body[:300]!r}: {status}"
        )
        assert status != 500, f"{described} {answer[:300]!r}"
        assert not self._forbidden.search(answer), f"{described} {answer[:1000]!r}"
        if role == "" and need != "nothing":
            assert status >= 400, described

    def _request(self, role: str) -> tuple[str, dict[str, Any], bytes]:
        pick = self._random.choice
        method, path, need = pick(self._doors)
        if self._random.random() < 0.3:
            parts = path.split("/")
            parts[self._random.randrange(len(parts))] = pick(WORDS)
            path, need = "/".join(parts) or "/", "unknown"
        path = path.replace("/x", "/shapes-classifier") if self._random.random() < 0.5 else path
        if self._random.random() < 0.1:
            method, need = (
                pick(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"]),
                "unknown",
            )
        if need == "unknown":  # it may be another door
            need = "nothing"
        headers = [
            (pick(HEADER_NAMES), pick(HEADER_VALUES)) for _ in range(self._random.randrange(4))
        ]
        if role:
            headers.append((b"authorization", f"Bearer {self._keys[role]}".encode()))
        elif self._random.random() < 0.5:
            key = pick([*self._keys.values()])
            wrong = pick([key[:-1], key + "a", key.replace(".", ""), key.upper(), "é", key[::-1]])
            headers.append(
                (
                    pick([b"authorization", b"x-api-key"]),
                    pick(["Bearer ", "Basic ", ""]).encode() + wrong.encode(),
                )
            )
        query = "&".join(f"{pick(FIELDS)}={pick(WORDS)}" for _ in range(self._random.randrange(3)))
        body = self._body()
        headers.append((b"content-length", str(len(body)).encode()))
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http",
            "http_version": "1.1", "root_path": "", "state": {}, "extensions": {},
        }  # fmt: skip
        return need, scope, body

    def _body(self) -> bytes:
        kind = self._random.random()
        if kind < 0.1:
            return self._random.randbytes(self._random.randrange(200))
        if kind < 0.2:
            return self._random.choice(
                [b"", b"{", b"[" * 2000, b"null", b'"a"', b"{}", b"[]", b"NaN"]
            )
        return json.dumps(self._value(3)).encode()

    def _value(self, depth: int) -> Any:
        if depth == 0 or self._random.random() < 0.2:
            return self._random.choice(VALUES)
        if self._random.random() < 0.2:
            return [self._value(depth - 1) for _ in range(self._random.randrange(3))]
        fields = self._random.sample(FIELDS, self._random.randrange(1, 5))
        return {field: self._value(depth - 1) for field in fields}

    async def _ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        messages: list[Any] = []
        bodies = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if bodies:
                return bodies.pop()
            return await asyncio.Future()

        async def send(message: Any) -> None:
            messages.append(message)

        await asyncio.create_task(self._asgi(scope, receive, send))  # a context of its own
        return messages[0]["status"], b"".join(message.get("body", b"") for message in messages)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("fuzzed") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(data))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in ROLES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "MAX_WAITING_JOBS", 5)
        application = Application(settings)
    application._keys.refresh()
    application.repository.load_all()
    yield application, keys
    application.close()


def state_of(application: Application) -> list[tuple[str, int]]:
    """Return the files of the data folder with their sizes, but the audit log, and the models with their states."""
    data = Path(application._settings.data)
    files = [
        (str(path), path.stat().st_size)
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.parent.name != "audit"
    ]
    statuses = [(f"{s.name} {s.version} {s.state}", 0) for s in application.repository.statuses()]
    return [
        *(entry for entry in files if not entry[0].endswith(("-wal", "-shm", "url.key"))),
        *statuses,
    ]


def run(server: Any, roles: tuple[str, ...], count: int, seed: int) -> Counter[int]:
    """Send random requests with the keys of roles, in turns."""
    application, keys = server
    fuzzer = Fuzzer(application, keys, seed)

    async def send_all() -> None:
        for number in range(count):
            await asyncio.wait_for(fuzzer.send(roles[number % len(roles)]), 60)

    asyncio.run(send_all())
    return fuzzer.statuses


@pytest.mark.parametrize("count", [1000, pytest.param(60_000, marks=pytest.mark.timeout(3600))])
def test_nothing_changes_without_a_key(server, count):
    before = state_of(server[0])
    statuses = run(server, ("",), count, seed=int(os.environ.get("FUZZ_SEED", "1")))
    assert statuses[401] > count / 10
    assert state_of(server[0]) == before


@pytest.mark.parametrize("count", [1000, pytest.param(40_000, marks=pytest.mark.timeout(3600))])
def test_no_request_with_a_key_is_a_fault(server, count):
    statuses = run(server, ROLES, count, seed=int(os.environ.get("FUZZ_SEED", "2")))
    assert statuses[400] > count / 20
    assert statuses[200] > 0
